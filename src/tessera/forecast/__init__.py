"""Forecasts when waiting pods start: how long holders of slices last, and what their ends make room for. Pure."""
