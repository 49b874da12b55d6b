"""Placement policies that benchmarks compare: Tessera's own, and rules of other schedulers and of papers.

Each is written from the code or the text of its source, as a rule for cards, nodes and starts alone. What else these
schedulers do (scores of CPU and memory, locks, staged claims) is left out.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from tessera.dra.node_devices import preferred_placements
from tessera.mig.geometry import Geometry, Placement, free_placements, free_slots, free_starts
from tessera.placement.card_table import CardTable, reachable_slots
from tessera.placement.cards import AlikeCards, FleetCard, FleetNode
from tessera.placement.demand import StepBudget
from tessera.placement.fleet import Fleet
from tessera.placement.policies import LeastCost, MixAware, Policy
from tessera.placement.state_costs import Memo, Pending, StateCosts

#: Steps of the shares of a workload.
STEP = 0.05
#: Sort key, least first.
Key = tuple[int, ...]


class _SortedCards:
    """The common part: nodes sorted by a key, then the cards of each node by another; of equals the one listed first.

    Only room counts as cost. The start is the one that leaves the card with the best rating, then the leftmost.
    """

    def packing_variants(self) -> Sequence[Self]:
        """This policy alone."""
        return (self,)

    def first_place(self, fleet: Fleet, profile: str) -> tuple[FleetCard, Placement] | None:
        """The best card with room, and the start there."""
        card = self.first_card(fleet, profile)
        return None if card is None else (card, card.alike.place(profile, self.arrange))

    def rank_cards(
        self, fleet: Fleet, profile: str, nodes: frozenset[str] | None, work: StepBudget
    ) -> Iterator[FleetCard]:
        """Cards with room, best first."""
        found = (card for group in fleet.candidates(profile) for card in group.members())
        cards = [card for card in found if nodes is None or card.node.name in nodes]
        work.spend(len(cards))
        yield from sorted(cards, key=self.key)

    def rank_nodes(self, fleet: Fleet) -> Iterator[FleetNode]:
        """Nodes with a free slot, best first."""
        return iter(sorted((node for node in fleet.listed_nodes() if node.free), key=self.node_key))

    def cost(self, table: CardTable, occupancy: int, pending: Pending, profile: str) -> float | None:
        """Returns 0 if there is room."""
        return None if table.cost(occupancy, pending, profile) is None else 0.0

    def arrange(self, table: CardTable, occupancy: int, pending: Pending) -> tuple[Placement, ...] | None:
        """The starts for the pending slices of a card; ``None`` when they do not fit."""
        return table.rated_by(self.rate_state).arrangement(occupancy, pending)

    def first_card(self, fleet: Fleet, profile: str) -> FleetCard | None:
        """The first card with room, by :meth:`key`: one of the first node that has any."""
        fits = _fitting(profile)
        for node in sorted(fleet.listed_nodes(), key=self.node_key):
            cards = [card for card in node.cards.values() if fits[card.alike]]
            if cards:
                return min(cards, key=self.card_key)
        return None

    def key(self, card: FleetCard) -> Key:
        """The order of all cards."""
        return (*self.node_key(card.node), *self.card_key(card))

    @staticmethod
    def rate_state(_table: CardTable, _occupancy: int) -> float:
        """Rates a card after the placement; less is better."""
        return 0.0

    @staticmethod
    def card_key(card: FleetCard) -> Key:
        """The order of a node's cards."""
        return (card.number,)

    @staticmethod
    def node_key(node: FleetNode) -> Key:
        """The order of nodes."""
        return (node.number,)


def _fitting(profile: str) -> Memo[AlikeCards, bool]:
    """Whether the cards of a group have room for a slice; for one state of the fleet."""

    def has_room(group: AlikeCards) -> bool:
        name = group.table.name_of(profile)
        return name is not None and group.table.cost(group.occupancy, group.pending, name) is not None

    return Memo(has_room)


class FirstFit(_SortedCards):
    """First-fit: cards and nodes in the order in which the fleet lists them; leftmost start."""

    def first_card(self, fleet: Fleet, profile: str) -> FleetCard | None:
        """The first card with room that is listed."""
        fits = _fitting(profile)
        return next((card for card in fleet.cards() if fits[card.alike]), None)


class BestFit(_SortedCards):
    """Best-fit: fullest cards first, whatever their nodes; for several slices, fullest nodes first; leftmost start."""

    def first_card(self, fleet: Fleet, profile: str) -> FleetCard | None:
        """One of the fullest cards with room."""
        groups = list(fleet.candidates(profile))
        least = min((group.room for group in groups), default=0)
        fullest = (card for group in groups if group.room == least for card in group.members())
        return min(fullest, key=self.key, default=None)

    def key(self, card: FleetCard) -> Key:
        """The fullest card first."""
        return (card.room, card.number)

    @staticmethod
    def node_key(node: FleetNode) -> Key:
        """The fullest node first."""
        return (node.free, node.number)


class Das(_SortedCards):
    """DAS (InstaSlice operator): emptiest node by whole per cent, first card with room, leftmost start."""

    @staticmethod
    def node_key(node: FleetNode) -> Key:
        """The emptiest node first."""
        total = sum(table.geometry.slots * cards for table, cards in node.tables.items())
        return (-int(100 * node.free / total), node.number)


class DeviceOrder(_SortedCards):
    """kube-scheduler with its allocator of ResourceClaims: the node with fewest pods, the first device that fits there.

    Devices are in the order in which Tessera's agents publish them: cards by index, starts by preference.
    """

    def first_place(self, fleet: Fleet, profile: str) -> tuple[FleetCard, Placement] | None:
        """The first free device of the node."""
        card = self.first_card(fleet, profile)
        if card is None:
            return None
        geometry = card.table.geometry
        name, free = card.table.name_of(profile), free_placements(geometry, card.occupancy)
        return card, next(each for each in preferred_placements(geometry) if each.profile == name and each in free)

    @staticmethod
    def node_key(node: FleetNode) -> Key:
        """The node with fewest pods first: all ask for the same CPU and memory."""
        return (sum(len(card.allocations) for card in node.cards.values()), node.number)


class Hami(_SortedCards):
    """HAMi 2.10 with its scores of MIG placements (pull request 2855, merged in 08/2026), default settings.

    Nodes are packed, the cards of a node spread. The start leaves the longest run of free slots, then the most legal
    placements.
    """

    @staticmethod
    def card_key(card: FleetCard) -> Key:
        """The emptiest card first."""
        return (-card.room, card.number)

    @staticmethod
    def node_key(node: FleetNode) -> Key:
        """The fullest node first."""
        return (node.free, node.number)

    @staticmethod
    def rate_state(table: CardTable, occupancy: int) -> float:
        """The longest run of free slots first, then the legal placements."""
        left = len(free_placements(table.geometry, occupancy))
        return -(_longest_run(table.geometry, occupancy) + left / 1000)


def _longest_run(geometry: Geometry, occupancy: int) -> int:
    used = "".join("1" if occupancy >> slot & 1 else "0" for slot in range(geometry.slots))
    return max(map(len, used.split("1")))


def blocked_windows(table: CardTable, occupancy: int) -> float:
    """The fragmentation metric of arXiv 2511.18906: memory slots of the windows that are blocked.

    A profile's window is a legal start with the slots that an instance covers from there. A window counts with its size
    if a slot of it is taken although the card has enough free slots for the profile.
    """
    geometry = table.geometry
    free = free_slots(geometry, occupancy)
    return float(
        sum(
            row.size * (len(row.starts) - len(free_starts(geometry, row, occupancy)))
            for row in geometry.profiles
            if row.size <= free
        )
    )


@dataclass(frozen=True)
class WeightedFragmentation:
    """FGD's fragmentation: free slots that a random request of a known workload could not use.

    Attributes:
        weights: profiles and their shares of the requests, in steps of :data:`STEP`, so that nearly equal mixes share
            what was computed; without weights every profile is equally likely.
    """

    weights: tuple[tuple[str, float], ...]

    @classmethod
    def of(cls, shares: Mapping[str, float]) -> Self:
        """Returns the rating for these shares."""
        rounded = ((name, round(share / STEP) * STEP) for name, share in shares.items())
        return cls(tuple(sorted((name, share) for name, share in rounded if share)))

    def __call__(self, table: CardTable, occupancy: int) -> float:
        """Returns the loss of an occupancy."""
        geometry = table.geometry
        free = free_slots(geometry, occupancy)
        rows = [(row, dict(self.weights).get(row.name, 0.0) if self.weights else 1.0) for row in geometry.profiles]
        lost = sum(weight * (free - reachable_slots(geometry, row, occupancy)) for row, weight in rows)
        return lost / (sum(weight for _, weight in rows) or 1.0)


class FragmentationGradient(LeastCost):
    """Least growth of fragmentation, all profiles being equally likely."""


class BlockedWindows(LeastCost):
    """The greedy rule of arXiv 2511.18906: least growth of its metric; see :func:`blocked_windows`."""

    def costs(self, table: CardTable) -> StateCosts:
        """By blocked windows."""
        return table.rated_by(blocked_windows)


class Fgd(LeastCost):
    """FGD (USENIX ATC '23) on MIG slots: fragmentation with the shares of the known workload as weights."""

    def costs(self, table: CardTable) -> StateCosts:
        """By the shares among the placements so far."""
        return table.rated_by(WeightedFragmentation.of(table.mix.shares))


#: The name of the policy that Tessera uses.
PRODUCTION = "mix-aware"
#: The policies by name.
POLICIES: Mapping[str, Callable[[], Policy]] = {
    "mix-aware": MixAware,
    "fragmentation-gradient": FragmentationGradient,
    "best-fit": BestFit,
    "DAS": Das,
    "FGD": Fgd,
    "first-fit": FirstFit,
    "HAMi-2.10": Hami,
    "device-order": DeviceOrder,
    "2511.18906": BlockedWindows,
}
