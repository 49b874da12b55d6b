"""What the node tells about its cards: labels, conditions, and what it offers."""
