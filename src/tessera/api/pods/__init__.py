"""What a pod asks for: slices, requirements, and the limits on its size."""
