"""The requests of a pod: slices, requirements, and the limits on its size."""
