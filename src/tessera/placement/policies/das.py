"""DAS, the rule of the dynamic accelerator slicer: the emptiest node, its first card with room, the first start.

Its claims that are staged over several reconciliations are left out: the planner places a demand in one step.
"""

from collections.abc import Iterator

from tessera.placement.fleet import Fleet, FleetCard, FleetNode
from tessera.placement.policy import LeftmostStarts, has_room
from tessera.placement.step_budget import StepBudget


class Das(LeftmostStarts):
    """Emptiest node first, by whole per cent of free slots; of equals the one that is listed first."""

    def rank_cards(
        self, fleet: Fleet, profile: str, nodes: frozenset[str] | None, work: StepBudget
    ) -> Iterator[FleetCard]:
        """Cards with room, node by node."""
        for node in self.rank_nodes(fleet):
            if nodes is None or node.name in nodes:
                for card in node.cards.values():
                    work.spend()
                    if has_room(card, profile):
                        yield card

    def rank_nodes(self, fleet: Fleet) -> Iterator[FleetNode]:
        """Nodes with a free slot, emptiest first."""
        return iter(sorted((node for node in fleet.listed_nodes() if node.free), key=_used_percent))


def _used_percent(node: FleetNode) -> int:
    total = sum(card.geometry.slots for card in node.cards.values())
    return -int(100 * node.free / total)
