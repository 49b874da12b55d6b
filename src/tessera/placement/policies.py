"""Placement policies behind one interface; :mod:`tessera.placement.plan` does everything else.

The planner batches, admits by priority, asks nodes and keeps every card exactly packable, whatever the policy. A policy
ranks the cards for one slice and the nodes for several slices, gives the cost of a slice on a card, and arranges the
starts of a card's slices in the end.

Tessera uses :class:`MixAware`. Those for comparison are in ``bench/rivals.py``.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol

from tessera.mig.geometry import Placement
from tessera.placement.card_table import Candidate, CardTable, Pending, StateCosts
from tessera.placement.cards import AlikeCards
from tessera.placement.fleet import Fleet, FleetCard, FleetNode
from tessera.placement.state_values import StateValues, shipped_values
from tessera.placement.step_budget import StepBudget


class Policy(Protocol):
    """A rule for placing slices. Stateless: the same fleet gives the same answers."""

    def packing_variants(self) -> Sequence["Policy"]:
        """The policies with which a whole batch is packed, one after the other until all of it fits."""
        ...

    def first_place(self, fleet: Fleet, profile: str) -> tuple[FleetCard, Placement] | None:
        """The first of :meth:`rank_cards` for all nodes, which usually is the one, and where the slice goes there."""
        ...

    def rank_cards(
        self, fleet: Fleet, profile: str, nodes: frozenset[str] | None, work: StepBudget
    ) -> Iterator[FleetCard]:
        """Cards that have room for one slice, best first.

        Of alike cards of one node, one is enough.

        Args:
            fleet: the cards; may not be changed.
            profile: the slice's profile, in any spelling.
            nodes: the only nodes to consider; ``None`` for all. Cards of others are ignored later.
            work: pays for cards that are tested one by one.
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


def other_nodes(group: AlikeCards) -> Iterator[FleetCard]:
    """One of the alike cards of each node but the first, fullest node first."""
    seen = {group.first().node.name}
    for card in group.cards():
        if card.node.name not in seen:
            seen.add(card.node.name)
            yield card


#: Up to so many nodes, the cards of a demand's own nodes are ranked one by one instead of all groups of alike cards.
_FEW_NODES = 64


class LeastCost:
    """Least growth of a loss first; the common part of policies that rate the states of cards.

    Args:
        spread: prefer the emptiest card; of equally empty ones the one that loses least.
    """

    def __init__(self, *, spread: bool = False) -> None:
        self._spread = spread

    def costs(self, table: CardTable) -> StateCosts:
        """The costs on cards of a table: by default the growth of fragmentation."""
        return table.costs

    def packing_variants(self) -> Sequence[Policy]:
        """By least loss first, then to the emptiest card.

        The second keeps open the starts which only small profiles can use. Neither is exact over several cards; of
        random sets that exactly fill 2 to 8 cards, the two together pack all but about one in a hundred.
        """
        return (self, type(self)(spread=True))

    def first_place(self, fleet: Fleet, profile: str) -> tuple[FleetCard, Placement] | None:
        """The card that loses least by one slice, then the fullest one, then one of the fullest node."""
        if self._spread:
            card = next(self.rank_cards(fleet, profile, None, StepBudget(1)), None)
            return None if card is None else (card, card.alike.place(profile, self.arrange))
        found = fleet.best_place(profile, self.costs)
        return None if found is None else (found[0].first(), found[1])

    def rank_cards(
        self, fleet: Fleet, profile: str, nodes: frozenset[str] | None, work: StepBudget
    ) -> Iterator[FleetCard]:
        """Cards that lose least by one slice, then the fullest card, then the fullest node."""
        if nodes is not None and len(nodes) <= _FEW_NODES:
            yield from self._rank_few(fleet, profile, nodes, work)
            return
        for group in fleet.candidates(profile, costs=self.costs, spread=self._spread):
            yield group.first()
            yield from other_nodes(group)

    def rank_nodes(self, fleet: Fleet) -> Iterator[FleetNode]:
        """Nodes with a free slot, fullest first."""
        return fleet.fullest_nodes()

    def cost(self, table: CardTable, occupancy: int, pending: Pending, profile: str) -> float | None:
        """Growth of the card's loss."""
        return self.costs(table).cost(occupancy, pending, profile)

    def arrange(self, table: CardTable, occupancy: int, pending: Pending) -> tuple[Placement, ...] | None:
        """The starts that leave the card with the least loss."""
        return self.costs(table).arrangement(occupancy, pending)

    def _rank_few(self, fleet: Fleet, profile: str, nodes: frozenset[str], work: StepBudget) -> Iterator[FleetCard]:
        """The same order, where few nodes come into question."""
        found: list[tuple[int, Candidate, int, str, str, FleetCard]] = []
        for card in (card for name in sorted(nodes) if name in fleet for card in fleet.cards(name)):
            work.spend()
            name = card.table.name_of(profile)
            one = None if name is None else self.costs(card.table).candidate(card.occupancy, card.pending, name)
            if one is not None:
                found.append((-one[1] if self._spread else 0, one, card.node.free, card.node.name, card.gpu, card))
        for row in sorted(found):
            yield row[-1]


class MixAware(LeastCost):
    """Least growth of the loss that was searched for mixes like that of the placements so far.

    Until enough slices were placed, and on cards without such losses, least growth of fragmentation.

    Args:
        values: the losses; by default those that come with Tessera.
        spread: as for the other policies.
    """

    def __init__(self, values: StateValues | None = None, *, spread: bool = False) -> None:
        super().__init__(spread=spread)
        self._values = shipped_values() if values is None else values

    def packing_variants(self) -> Sequence[Policy]:
        """As for the gradient, with the same losses."""
        return (self, MixAware(self._values, spread=True))

    def costs(self, table: CardTable) -> StateCosts:
        """By the mix's losses; they are computed anew when the shares change."""
        shares = table.mix.shares
        known = table.chosen.get(self._values)
        if known is None or known[0] is not shares:
            loss = self._values.for_mix(table)
            known = table.chosen[self._values] = (shares, table.costs if loss is None else table.rated_by(loss))
        return known[1]
