"""The webhook's two ports and its certificate."""
