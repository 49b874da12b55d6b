"""Records of deciders: their inputs and outputs, and the same decider run over them again.

A decider is a state machine without I/O. From the same state and inputs it decides the same on any machine. So a record
from somebody's cluster becomes a test.
"""
