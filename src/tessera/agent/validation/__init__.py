"""Shows whether a program can compute on a node's cards, by running one."""
