"""Kueue beside Tessera: its configuration and objects, what it charges, and which pods it holds."""
