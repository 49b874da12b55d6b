"""Faults, load and memory of a lab's simulated cards, and scenarios of them over time."""
