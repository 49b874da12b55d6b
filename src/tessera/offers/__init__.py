"""Matches the requirements of a pod with what the nodes offer: a MIG slice, a share of a GPU, or a whole GPU."""
