"""The price of a card model: what a pod that any model suits should not take, because others will need it.

Requests are bound to a group of models if only these suit them: by what they select, or since only nodes with these
models are large enough. The share of the requests that is bound to a group says how much of the coming demand is. What
is bound to the group, over what is free of it, is compared with all demand over all that is free: where every request
suits every model nothing has a price, and a price of 1 means that the group is asked for about twice as much as the
rest. ``bench/openb.py`` measures the rule on traces.
"""


def scarcity(bound: float, asked: float, free: float, free_of_group: float) -> float:
    """Returns the price of one group; amounts are in any one unit of cards.

    Args:
        bound: what was asked for that only this group suits.
        asked: all that was asked for.
        free: what is free of all models.
        free_of_group: what is free of this group; less than one unit counts as one.
    """
    return bound / asked * max(0.0, free / max(1.0, free_of_group) - 1) if asked else 0.0
