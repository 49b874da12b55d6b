"""Whether a program can compute on a node's cards, found out by running one."""
