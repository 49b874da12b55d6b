"""A simulated cluster autoscaler: its timers, its back-off, and its rules for nodes that offer no cards yet."""
