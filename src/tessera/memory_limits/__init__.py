"""Watches the memory of shared cards: measures the use of each pod, and acts on pods that use too much."""
