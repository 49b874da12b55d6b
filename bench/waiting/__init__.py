"""What a released slot costs while many pods wait: ``python -m bench.waiting``."""
