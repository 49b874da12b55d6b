"""Carries out the slicer's instructions at the API server."""
