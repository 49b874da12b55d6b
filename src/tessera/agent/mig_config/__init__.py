"""MIG layouts of a node's static cards: what is desired, what differs, and how a card gets there from any state."""
