"""One reading of the node's GPUs, who owns each of them and who uses its devices."""
