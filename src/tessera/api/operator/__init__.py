"""What NVIDIA's gpu-operator can be told, and what of it has no effect here."""
