"""Mirrors resources of the API server by list and watch."""
