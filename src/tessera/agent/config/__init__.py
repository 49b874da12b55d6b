"""Follows the desired configuration of a node: its sharing profile and its MIG layout."""
