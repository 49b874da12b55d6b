"""The ways to share a device, one module for each; :mod:`.interface` is what they have in common."""
