"""The agent's part: publishes the devices of its node, and prepares claims for containers."""
