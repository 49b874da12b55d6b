"""Admission webhooks: rules for their configuration, which ones match a write, and the calls."""
