"""The node's driver: where it is, when it may be used, and what the agent does while it is replaced."""
