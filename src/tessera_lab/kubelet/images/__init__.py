"""Simulated registries, the images on one node, and the programs inside images."""
