"""The desired configuration of a node: its sharing profile and its MIG layout, followed as they change."""
