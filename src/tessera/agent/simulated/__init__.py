"""Simulated cards under an agent: their driver, their tests and their MPS daemons."""
