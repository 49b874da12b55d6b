"""Pods and nodes reduced to the values that decide about slices."""
