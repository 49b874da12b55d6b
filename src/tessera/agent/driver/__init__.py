"""Where the node's driver is, when it may be used, and what becomes of the agent while it is replaced."""
