"""Joins the rooms of the agent: wiring, life cycle over drivers, metrics."""
