"""What happens on a lab's simulated cards: faults, load and memory of pods, and scenarios of both over time."""
