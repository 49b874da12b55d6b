"""Tells from the reason of a waiting pod if it can start once other pods end."""

from tessera.placement.demand import Fragmented, Full, GangNoRoom, NoNode, QueueFull, Reason, Reserved


def waits_for_room(reason: Reason | None) -> bool:
    """True if the end of other pods could make room: on the cards, or of CPU and memory on a node."""
    if isinstance(reason, NoNode):
        return any(rule.startswith(("Insufficient ", "Too many pods")) for rule, _ in reason.counts)
    return isinstance(reason, Full | Fragmented | Reserved)


def competes_for_room(reason: Reason | None) -> bool:
    """True if a pod with this reason takes room that becomes free, so that others wait behind it.

    A pod that never fits, that the rules of all nodes refuse, or whose gang is incomplete, takes none. None is the
    reason of a pod that is not planned yet.
    """
    match reason:
        case None:
            return True
        case QueueFull(never=never):
            return not never
        case GangNoRoom(reason=of):
            return competes_for_room(of)
        case _:
            return waits_for_room(reason)
