"""The present use of the cluster's cards, for the command line and the live page."""
