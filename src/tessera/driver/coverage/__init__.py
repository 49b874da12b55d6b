"""Checks that a driver image exists for each kernel that nodes will run next, before a node boots into it."""
