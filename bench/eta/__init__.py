"""Back-test of the expected starts of waiting pods: ``python -m bench.eta``."""
