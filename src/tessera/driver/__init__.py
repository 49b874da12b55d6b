"""Drivers: chooses the image that a node needs, finds or builds it, and brings it to nodes, also to serving ones."""
