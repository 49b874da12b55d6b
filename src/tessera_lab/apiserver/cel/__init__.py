"""TODO cel."""
