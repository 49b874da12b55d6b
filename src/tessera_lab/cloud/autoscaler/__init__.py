"""A simulated cluster autoscaler: its timers, its back-off, and how it treats nodes whose cards are not there yet."""
