"""Garbage collection by owner, and the life of namespaces."""
