"""What the slicer knows, the events that change it, and the instructions that it gives."""
