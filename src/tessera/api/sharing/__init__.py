"""Sharing profiles: files in the format of NVIDIA's device plugin, and a node's resources by them. All is pure."""
