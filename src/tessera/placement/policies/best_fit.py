"""Best-fit: the fullest card that has room, leftmost start."""

from collections.abc import Iterator

from tessera.placement.fleet import Fleet, FleetCard, FleetNode
from tessera.placement.policy import LeftmostStarts, has_room
from tessera.placement.step_budget import StepBudget


class BestFit(LeftmostStarts):
    """Fullest cards and nodes first; of equals the one that is listed first."""

    def rank_cards(
        self, fleet: Fleet, profile: str, nodes: frozenset[str] | None, work: StepBudget
    ) -> Iterator[FleetCard]:
        """Cards with room, those with the fewest free slots first."""
        cards = [card for card in fleet.cards() if nodes is None or card.node.name in nodes]
        work.spend(len(cards))
        for card in sorted(cards, key=lambda one: one.table.room(one.occupancy, one.pending)):
            if has_room(card, profile):
                yield card

    def rank_nodes(self, fleet: Fleet) -> Iterator[FleetNode]:
        """Nodes with a free slot, fullest first."""
        return fleet.fullest_nodes()
