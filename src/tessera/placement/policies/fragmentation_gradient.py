"""The policy that Tessera uses: a slice goes where it fragments the cards least (FGD, USENIX ATC '23, on MIG slots).

:class:`~tessera.placement.card_table.CardTable` says what the measure is. Ties go to the fullest card, then to the
fullest node. Cost does not depend on the number of cards: alike cards are ranked together.
"""

from collections.abc import Iterator, Sequence

from tessera.mig.geometry import Placement
from tessera.placement.card_table import Candidate, CardTable, Pending
from tessera.placement.fleet import Fleet, FleetCard, FleetNode
from tessera.placement.policy import Policy
from tessera.placement.step_budget import StepBudget

_FEW_NODES = 64
# Up to so many nodes, a demand's own nodes are looked at one by one instead of all groups of alike cards.


class FragmentationGradient:
    """Least growth of fragmentation first.

    Args:
        spread: prefer the emptiest card; of equally empty ones the one that loses least.
    """

    def __init__(self, *, spread: bool = False) -> None:
        self._spread = spread

    def packing_variants(self) -> Sequence[Policy]:
        """By least loss first, then to the emptiest card.

        The second keeps open the starts which only small profiles can use. Neither is exact over several cards; of
        random sets that exactly fill 2 to 8 cards, the two together pack all but about one in a hundred.
        """
        return (self, FragmentationGradient(spread=True))

    def rank_cards(
        self, fleet: Fleet, profile: str, nodes: frozenset[str] | None, work: StepBudget
    ) -> Iterator[FleetCard]:
        """Cards that lose least by one slice, then the fullest card, then the fullest node."""
        if nodes is not None and len(nodes) <= _FEW_NODES:
            yield from self._rank_few(fleet, profile, nodes, work)
            return
        for group in fleet.candidates(profile, spread=self._spread):
            for alike in group.nodes():
                yield next(iter(alike.values()))

    def rank_nodes(self, fleet: Fleet) -> Iterator[FleetNode]:
        """Nodes with a free slot, fullest first."""
        return fleet.fullest_nodes()

    def cost(self, table: CardTable, occupancy: int, pending: Pending, profile: str) -> float | None:
        """Growth of the card's fragmentation."""
        return table.cost(occupancy, pending, profile)

    def arrange(self, table: CardTable, occupancy: int, pending: Pending) -> tuple[Placement, ...] | None:
        """The starts that leave the card least fragmented."""
        return table.arrangement(occupancy, pending)

    def _rank_few(self, fleet: Fleet, profile: str, nodes: frozenset[str], work: StepBudget) -> Iterator[FleetCard]:
        """The same order, where few nodes come into question."""
        found: list[tuple[int, Candidate, int, str, str, FleetCard]] = []
        for card in (card for name in sorted(nodes) if name in fleet for card in fleet.cards(name)):
            work.spend()
            name = card.table.name_of(profile)
            one = None if name is None else card.table.candidate(card.occupancy, card.pending, name)
            if one is not None:
                found.append((-one[1] if self._spread else 0, one, card.node.free, card.node.name, card.gpu, card))
        for row in sorted(found):
            yield row[-1]
