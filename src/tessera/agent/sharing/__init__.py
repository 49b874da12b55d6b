"""Advertises cards that are not cut on demand: whole, in shares, or as the MIG devices of a layout."""
