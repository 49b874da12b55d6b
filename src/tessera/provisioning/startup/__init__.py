"""Startup taints, the startup deadline and the replacement of nodes that miss it."""
