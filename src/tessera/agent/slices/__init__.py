"""Slices on demand: makes the slices promised to pods, gives them to containers, and destroys them after use."""
