"""Servers that simulated containers declare: HTTP answers without a process."""
