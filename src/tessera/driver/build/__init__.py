"""Builds images with compiled kernel modules in the cluster: once for each kernel, for all nodes that need it."""
