"""Validating admission policies: rules for their configuration, and their evaluation."""
