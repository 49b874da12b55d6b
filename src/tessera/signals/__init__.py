"""Signals by which others scale services: load, time to Ready, and the room that only Tessera knows. Scales nothing."""
