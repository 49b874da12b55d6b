"""Node and pod state that driver decisions read, and the status written to nodes."""
