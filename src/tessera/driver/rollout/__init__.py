"""Rollout: replaces the driver of nodes that serve, a few at a time, and returns to the old one after a failure."""
