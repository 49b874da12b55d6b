"""The choice of a node for whole cards and shares; :mod:`tessera.placement.ratings.node_ratings` has the rule."""
