"""Reads the node's GPUs once for all parts, with the owner of each GPU and the users of its devices."""
