"""Simulated images of the driver stack: programs with costs, markers and a kernel module."""
