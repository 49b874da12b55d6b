"""The state from which a simulation starts: cards, leases on them, and waiting pods in their order. Values only.

Nodes, cards and pods have numbers, so that a set of nodes is a bit mask.
"""

from collections.abc import Sequence

import msgspec

from tessera.forecast.survival import SurvivalCurve
from tessera.placement.card_table import CardTable

#: Bits of an occupancy by number of the card.
Claims = tuple[tuple[int, int], ...]


class LifeEstimate(msgspec.Struct, frozen=True):
    """How long a lease still lasts.

    Attributes:
        curve: of its kind; None if too little is known.
        age: seconds that it has run.
        deadline: seconds after which it ends in any case; None if it may run for ever.
    """

    curve: SurvivalCurve | None = None
    age: float = 0.0
    deadline: float | None = None

    def draw(self, share: float) -> tuple[float, bool]:
        """Returns the seconds within which this share of such leases end, and True if the deadline ends it.

        Infinite seconds if nothing is known.
        """
        if self.curve is None:
            return (float("inf"), False) if self.deadline is None else (self.deadline, True)
        seconds = self.curve.residual(self.age, share)
        if self.deadline is not None and self.deadline <= seconds:
            return self.deadline, True
        return seconds, False


class Holder(msgspec.Struct, frozen=True):
    """A lease on cards of one node.

    Attributes:
        node: number of the node.
        claims: what it takes of which card.
        life: how long it still lasts.
    """

    node: int
    claims: Claims
    life: LifeEstimate


class Waiter(msgspec.Struct, frozen=True):
    """A waiting pod.

    Attributes:
        profiles: the slices that it needs, sorted.
        nodes: mask of the nodes that may take it.
        life: how long it will hold them.
        reserved: slots that are kept for it; others that come later may not use them.
    """

    profiles: tuple[str, ...]
    nodes: int
    life: LifeEstimate = LifeEstimate()
    reserved: Claims = ()


class Situation(msgspec.Struct, frozen=True):
    """All of it.

    Attributes:
        nodes: the numbers of the cards of each node.
        tables: the table of each card.
        occupancies: the bits in use of each card.
        holders: the leases.
        waiters: the waiting pods; the first goes first.
    """

    nodes: Sequence[Sequence[int]]
    tables: Sequence[CardTable]
    occupancies: Sequence[int]
    holders: Sequence[Holder]
    waiters: Sequence[Waiter]
