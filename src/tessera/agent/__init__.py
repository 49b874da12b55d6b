"""The node process: cards, slices, device plugins and CDI of one node, from one inventory."""
