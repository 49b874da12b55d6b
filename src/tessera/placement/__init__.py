"""Places slices on the GPUs of a cluster, and chooses whole GPUs of a node that are close together. Pure."""
