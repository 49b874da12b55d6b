"""Position, reason and expected start of each waiting pod, from the slicer's state. Never part of a decision."""
