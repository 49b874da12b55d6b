"""Containers of one pod: image, environment, CDI edits, simulated process, probes."""
