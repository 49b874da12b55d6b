"""Defaults and validation rules of pods, and what binding and eviction do to them."""
