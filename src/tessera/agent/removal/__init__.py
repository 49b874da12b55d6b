"""``tessera.agent.removal``: what an agent does when Tessera leaves its node."""
