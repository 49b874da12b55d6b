"""Finds the node's driver, decides when the agent may use it, and releases the cards while it is replaced."""
