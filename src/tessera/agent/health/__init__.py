"""Decides which cards and MIG devices may be given out: hardware events and probes in, health of devices out."""
