"""Decides which pod gets which slice: observations in, instructions out, no I/O."""
