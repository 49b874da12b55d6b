"""Memory of shared cards: how much each pod uses, and what is done about pods that use too much."""
