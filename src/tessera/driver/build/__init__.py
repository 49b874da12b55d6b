"""Builds images with finished kernel modules: once for a kernel, in the cluster, for every node that comes after."""
