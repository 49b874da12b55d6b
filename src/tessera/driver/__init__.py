"""Drivers: which image a node needs, whether it exists, how it is built, and how it comes to nodes that serve."""
