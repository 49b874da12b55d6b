"""The interface of a placement policy; :mod:`tessera.placement.plan` does everything else.

The planner batches, admits by priority, asks nodes and keeps every card exactly packable, whatever the policy. A policy
answers four questions: which card a slice goes to, which node several slices go to, how much a slice costs a card, and
which starts the slices of a card get in the end.

A new policy is one class in :mod:`tessera.placement.policies`, and one line in its table.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol, Self

from tessera.mig.geometry import Placement
from tessera.mig.layout_planning import list_packings
from tessera.placement.card_table import CardTable, Pending
from tessera.placement.fleet import Fleet, FleetCard, FleetNode
from tessera.placement.step_budget import StepBudget


class Policy(Protocol):
    """A rule for placing slices. Stateless: the same fleet gives the same answers."""

    def packing_variants(self) -> Sequence["Policy"]:
        """The policies with which a whole batch is packed, one after the other until all of it fits."""
        ...

    def rank_cards(
        self, fleet: Fleet, profile: str, nodes: frozenset[str] | None, work: StepBudget
    ) -> Iterator[FleetCard]:
        """Cards that have room for one slice, best first.

        Of cards of one node that are alike, one is enough.

        Args:
            fleet: the cards; may not be changed.
            profile: the slice's profile, in any spelling.
            nodes: the only nodes to consider; ``None`` for all. Cards of others are ignored later.
            work: charged for cards that are looked at one by one.
        """
        ...

    def rank_nodes(self, fleet: Fleet) -> Iterator[FleetNode]:
        """Nodes with free slots, in the order in which several slices of one demand try them."""
        ...

    def cost(self, table: CardTable, occupancy: int, pending: Pending, profile: str) -> float | None:
        """Returns the cost of one more slice on a card, 0 or more; ``None`` if the card has no room."""
        ...

    def arrange(self, table: CardTable, occupancy: int, pending: Pending) -> tuple[Placement, ...] | None:
        """The starts for the pending slices of a card; ``None`` when they do not fit."""
        ...


class LeftmostStarts:
    """The common part of first-fit, best-fit and DAS: only room counts, and the leftmost start."""

    def packing_variants(self) -> Sequence[Self]:
        """This policy alone."""
        return (self,)

    def cost(self, table: CardTable, occupancy: int, pending: Pending, profile: str) -> float | None:
        """Returns 0 if there is room."""
        return None if table.cost(occupancy, pending, profile) is None else 0.0

    def arrange(self, table: CardTable, occupancy: int, pending: Pending) -> tuple[Placement, ...] | None:
        """The arrangement with the lowest starts."""
        rows = [table.geometry.profile(name) for name in pending]
        found = list_packings(table.geometry, rows, occupancy).values()
        return min(found, key=lambda placements: sorted(one.start for one in placements), default=None)


def has_room(card: FleetCard, profile: str) -> bool:
    """True if a card takes one more slice besides those of this batch."""
    name = card.table.name_of(profile)
    return name is not None and card.table.cost(card.occupancy, card.pending, name) is not None
