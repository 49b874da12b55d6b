"""Measures the node's cards and shows who uses them, for Prometheus."""
