"""``tessera top``."""
