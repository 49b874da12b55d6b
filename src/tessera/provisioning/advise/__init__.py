"""Derives an autoscaler's timers, its replace loop and the size of a warm pool from measured times to a GPU."""
