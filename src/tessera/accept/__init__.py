"""Accepts a machine's cards: reads everything that Tessera uses of them, and judges it by a table of checks."""
