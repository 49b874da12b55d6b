"""One batch of waiting pods: their order, their places, and the life cycle of an allocation."""
