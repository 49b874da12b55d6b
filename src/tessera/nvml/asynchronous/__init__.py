"""Runs the blocking calls of NVML under an event loop."""
