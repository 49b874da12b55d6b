"""Real GPUs through NVIDIA's Python binding, with the driver's libraries and device files on the host."""
