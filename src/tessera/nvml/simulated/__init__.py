"""Simulated GPUs: one machine as a value, the calls on it, and faults that tests inject."""
