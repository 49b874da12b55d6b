"""Slots from the old pods of a service to its new ones."""
