"""The controller on a large cluster: ``python -m bench.large``."""
