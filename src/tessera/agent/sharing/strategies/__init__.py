"""The ways to share a device; :mod:`.interface` is what they have in common, :mod:`.registry` has them all."""
