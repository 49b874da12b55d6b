"""Decides about one pod: patch it, leave it alone, or refuse it."""
