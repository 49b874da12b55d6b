"""Records of deciders: what went in, what came out, and the same decider run over it again.

A decider is a state machine without I/O. Given its state and the values that went in, it decides the same again, on
any machine: a record from somebody's cluster becomes a test.
"""
