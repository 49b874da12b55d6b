"""Kernels that are still to come, and whether there is a driver image for each: known before a node boots into one."""
