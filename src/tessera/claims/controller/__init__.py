"""Slices by ResourceClaims: what claims ask for, the devices that nodes publish, and the writes of allocations."""
