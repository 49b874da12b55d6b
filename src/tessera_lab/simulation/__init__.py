"""Base of the simulated cluster: virtual time, costs, operating systems, and restarts of failed parts."""
