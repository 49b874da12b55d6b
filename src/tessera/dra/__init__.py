"""Dynamic Resource Allocation: devices of a node, the claims for them, and which devices fit. Pure: no I/O."""
