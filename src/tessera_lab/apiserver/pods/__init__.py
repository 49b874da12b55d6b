"""Defaults and validation rules of pods, and their binding and eviction."""
