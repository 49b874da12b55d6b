"""Applies MIG layouts to a node's static cards: desired state, differences, and steps from any state of a card."""
