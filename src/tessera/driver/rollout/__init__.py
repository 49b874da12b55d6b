"""Rollout: how another driver comes to nodes that serve, a few at a time, and back where it does not work."""
