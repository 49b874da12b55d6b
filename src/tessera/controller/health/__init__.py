"""The breaker: one rule of health takes no more than a share of the fleet's cards away."""
