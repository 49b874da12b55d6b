"""Gives slices to pods that ask by ResourceClaims: a satellite of the controller, and one of the agent."""
