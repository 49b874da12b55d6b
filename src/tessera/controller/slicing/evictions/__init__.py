"""Running pods that are evicted for waiting ones: moves, and preemption of lower priorities."""
