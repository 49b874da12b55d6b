"""The price of a card model: what a pod that any model suits should not take, because others will need it.

The share of the requests that only this model suits says how much of the coming demand is bound to it. Times all that
is free, over what is free of the model: a price of 1 means that what is free of it would just do if all that is free
were asked for. ``bench/openb.py`` measures the rule on traces.
"""


def scarcity(pinned: float, asked: float, free: float, free_of_model: float) -> float:
    """Returns the price; amounts are in any one unit of cards.

    Args:
        pinned: what was asked for that only this model suits; a request that several models suit counts for each in
            part.
        asked: all that was asked for.
        free: what is free of all models.
        free_of_model: what is free of this one; less than one unit counts as one.
    """
    return pinned / asked * free / max(1.0, free_of_model) if asked else 0.0
