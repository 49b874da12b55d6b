"""The webhook process."""
