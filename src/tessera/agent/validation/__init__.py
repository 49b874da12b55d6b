"""Validates a node's cards: runs a program that computes on them."""
