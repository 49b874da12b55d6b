"""Pods that start all or none."""
