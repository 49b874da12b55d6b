"""The node process: the one owner of the node's NVML."""
