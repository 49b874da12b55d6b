"""Sharing profiles: files in the format of NVIDIA's device plugin, and what a node offers by them. All is pure."""
