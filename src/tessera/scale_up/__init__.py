"""Asks for new nodes, on which pods that wait for slices could run."""
