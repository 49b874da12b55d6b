"""``tessera.agent.removal``: the work of an agent when Tessera leaves its node."""
