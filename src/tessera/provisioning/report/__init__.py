"""Turns records and experiments into numbers, a table, charts and a page."""
