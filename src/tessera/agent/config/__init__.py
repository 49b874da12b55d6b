"""What the node's administrator wishes: sharing profile and MIG layout, followed as they change."""
