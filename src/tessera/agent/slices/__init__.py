"""Slices on demand: what was promised to pods is made, handed over and taken back on cards that are given to it."""
