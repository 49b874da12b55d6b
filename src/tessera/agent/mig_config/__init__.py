"""MIG layouts of a node's static cards: what is wished, how to get there from any state, who must leave first."""
