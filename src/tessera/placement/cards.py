"""Cards, nodes and the placements on them.

Placements are values. :class:`FleetCard`, :class:`FleetNode` and :class:`AlikeCards` are the fleet's index: only
``fleet.py`` changes them, other modules only read them.
"""

from collections.abc import Iterator

import msgspec

from tessera.mig.geometry import Geometry, Placement
from tessera.placement.card_table import CardTable, Pending


class CardPlacement(msgspec.Struct, frozen=True, order=True):
    """One GPU instance in the fleet.

    Attributes:
        node: node name.
        gpu: the card's UUID.
        profile: the profile's name.
        start: first memory slot.
        size: memory slots.
    """

    node: str
    gpu: str
    profile: str
    start: int
    size: int

    @property
    def on_card(self) -> Placement:
        """The same without node and card."""
        return Placement(self.profile, self.start, self.size)


class OwnedPlacement(msgspec.Struct, frozen=True):
    """A placement and its owner.

    Attributes:
        placement: the placement.
        owner: a pod's key, or a description of a foreign instance; for messages and for freeing.
    """

    placement: CardPlacement
    owner: str


class FleetCard:
    """One card in the fleet's index. Only the fleet changes it.

    Attributes:
        node: node name.
        gpu: UUID.
        table: costs and arrangements of its geometry.
        occupancy: bits of the instances on the card, see ``tessera.mig.geometry``.
        pending: profiles that the batch being planned gave the card; empty outside of ``plan``.
        allocations: by start.
    """

    __slots__ = ("allocations", "gpu", "node", "occupancy", "pending", "table")

    def __init__(self, node: "FleetNode", gpu: str, table: CardTable) -> None:
        self.node = node
        self.gpu = gpu
        self.table = table
        self.occupancy = 0
        self.pending: Pending = ()
        self.allocations: dict[int, OwnedPlacement] = {}

    @property
    def geometry(self) -> Geometry:
        """Returns the possible placements of the card."""
        return self.table.geometry


class FleetNode:
    """A node's cards and its free memory slots, those of pending instances already taken off."""

    __slots__ = ("cards", "free", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.cards: dict[str, FleetCard] = {}
        self.free = 0


class AlikeCards:
    """Cards that are alike: free slots of the node -> node name -> UUID -> card."""

    __slots__ = ("by_free",)

    def __init__(self) -> None:
        self.by_free: dict[int, dict[str, dict[str, FleetCard]]] = {}

    def nodes(self) -> Iterator[dict[str, FleetCard]]:
        """The alike cards of each node, fullest node first."""
        for free in sorted(self.by_free):
            yield from self.by_free[free].values()
