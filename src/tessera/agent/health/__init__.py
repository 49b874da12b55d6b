"""Decides which cards and MIG devices may be allocated: hardware events and probes in, health of devices out."""
