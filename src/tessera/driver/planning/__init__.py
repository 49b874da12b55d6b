"""Decides which driver each node gets. No I/O except the build requests."""
