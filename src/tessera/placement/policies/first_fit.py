"""First-fit: the first card in the list that has room, leftmost start."""

from collections.abc import Iterator

from tessera.placement.fleet import Fleet, FleetCard, FleetNode
from tessera.placement.policy import LeftmostStarts, has_room
from tessera.placement.step_budget import StepBudget


class FirstFit(LeftmostStarts):
    """Cards and nodes in the order in which the fleet lists them."""

    def rank_cards(
        self, fleet: Fleet, profile: str, nodes: frozenset[str] | None, work: StepBudget
    ) -> Iterator[FleetCard]:
        """Cards with room, as listed."""
        for card in fleet.cards():
            if nodes is None or card.node.name in nodes:
                work.spend()
                if has_room(card, profile):
                    yield card

    def rank_nodes(self, fleet: Fleet) -> Iterator[FleetNode]:
        """Nodes with a free slot, as listed."""
        return (node for node in fleet.listed_nodes() if node.free)
