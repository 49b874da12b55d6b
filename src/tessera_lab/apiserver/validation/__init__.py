"""Checks an object against its schema and the rules of its kind."""
