"""Decides about one pod: patches it, leaves it unchanged, or refuses it."""
