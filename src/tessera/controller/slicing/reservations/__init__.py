"""Room kept for pods that the order puts first: the search for it, its record, residual lives."""
