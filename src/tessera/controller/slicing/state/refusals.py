"""Tells from the reason of a waiting pod if it can start once other pods end."""

from tessera.reasons.reason import Reason


def waits_for_room(reason: Reason | None) -> bool:
    """True if the end of other pods could make room: on the cards, or of CPU and memory on a node."""
    return reason is not None and reason.waits_for_room


def competes_for_room(reason: Reason | None) -> bool:
    """True if a pod with this reason takes room that becomes free; None is that of a pod that is not planned yet."""
    return reason is None or reason.competes
