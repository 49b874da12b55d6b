"""Options, metrics, and the limits of one review."""
