"""The cards of on-demand nodes, with the allocations and foreign slices on them.

A thin layer over :class:`tessera.placement.fleet.Fleet`. The fleet refuses collisions, but they occur: an agent may
report a newly promised slice as foreign, and a record written by hand may overlap another. Here every slot that any
record claims counts as occupied.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

import msgspec

from tessera.api.instaslice import ForeignSlice, NodeResources, Slice
from tessera.api.names import NodeName
from tessera.api.nodes.node_cards import CardGeometries
from tessera.controller.objects.pod_info import SLICES, KindOfRequest
from tessera.controller.slicing.state.allocation import Allocation
from tessera.mig.geometry import Geometry
from tessera.mig.names import plain_profile
from tessera.placement.fleet import CardPlacement, Fleet, PlaceOccupied, UnknownCard

#: By UUID of a card its names, each with first memory slots; empty for all.
CardNames = Mapping[str, tuple[tuple[str, tuple[int, ...]], ...]]
#: Owner, in the fleet, of slots that are occupied without an allocation.
FOREIGN = "a slice that no record of Tessera explains"


class FleetInventory:
    """The cards and the slices on them.

    Attributes:
        fleet: the cards that placement plans on; has the nodes whose cards are given to on-demand slicing.
        geometries: shared geometries of cards.
    """

    def __init__(self) -> None:
        self.fleet = Fleet()
        #: Memory slots of all cards, by model.
        self.totals: Counter[str] = Counter()
        #: By kind of request and node, the cards that the kind has put there; none is empty.
        self._cards: dict[tuple[str, NodeName], Mapping[str, Geometry]] = {}
        self.geometries = CardGeometries()
        #: By node and UUID of a card, further names of its profiles, with the starts that requests choose by them.
        self.names: dict[NodeName, CardNames] = {}
        #: By node and UUID, the values of cards that demands compare (:attr:`.FleetNode.values`).
        self.values: dict[NodeName, Mapping[str, Mapping[str, str]]] = {}
        #: Nodes whose names or values have changed since their cards were put.
        self.renamed: set[NodeName] = set()

    def name_cards(self, node: NodeName, names: CardNames, values: Mapping[str, Mapping[str, str]]) -> bool:
        """Sets the further names and the values of a node's cards, from its next :meth:`rebuild` on; False if equal."""
        if names == self.names.get(node, {}) and values == self.values.get(node, {}):
            return False
        self.names[node], self.values[node] = names, values
        self.renamed.add(node)
        if not names:
            del self.names[node]
        if not values:
            del self.values[node]
        return True

    def rebuild(self, node: NodeName, resources: NodeResources, held: Iterable[Allocation]) -> Sequence[Allocation]:
        """Replaces a node's cards, with the allocations and foreign slices on them.

        Args:
            node: the node.
            resources: its cards and foreign slices.
            held: allocations whose slots are not free, the most important first.

        Returns:
            Allocations that collide with an earlier one, or whose card is missing.
        """
        self.renamed.discard(node)
        names = self.names.get(node, {})
        cards = self.geometries.of(resources)
        self.put_cards(SLICES, node, {gpu: _named(each, names.get(gpu, ())) for gpu, each in cards.items()})
        if node in self.fleet:
            self.fleet.node(node).values = self.values.get(node, {})
        collided = [allocation for allocation in held if not self.occupy(allocation)]
        for item in resources.foreign:
            self._occupy_foreign(node, item)
        return collided

    def put_cards(self, kind: KindOfRequest, node: NodeName, cards: Mapping[str, Geometry]) -> None:
        """Replaces the cards that a node has for a kind of request; all slots of the new ones are free."""
        for gpu, geometry in self._cards.pop((kind.name, node), {}).items():
            self.fleet.remove_card(node, gpu)
            self.totals[geometry.family] -= geometry.slots
            if not self.totals[geometry.family]:
                del self.totals[geometry.family]
        for gpu, geometry in cards.items():
            self.fleet.add_card(node, gpu, geometry)
            self.totals[geometry.family] += geometry.slots
        if cards:
            self._cards[kind.name, node] = cards

    def occupy(self, allocation: Allocation) -> bool:
        """Occupies an allocation's slots; False, with no change, if a slot is occupied or the card is missing."""
        placements = [_placement(allocation.node, item) for item in allocation.slices]
        try:
            self.fleet.occupy_all(placements, allocation.owner)
        except (UnknownCard, ValueError):
            return False
        return True

    def adopt_foreign(self, allocation: Allocation) -> bool:
        """Makes foreign slices those of an allocation.

        Returns False and changes nothing unless the agent reports each slice at exactly that position, and the position
        is legal on its card.
        """
        placements = {_placement(allocation.node, item) for item in allocation.slices}
        if len(placements) < len(allocation.slices) or not all(map(self._is_foreign, placements)):
            return False
        for each in placements:
            self.fleet.release(each.node, each.gpu, each.start)
        return self.occupy(allocation)

    def _is_foreign(self, placement: CardPlacement) -> bool:
        try:
            card = self.fleet.card(placement.node, placement.gpu)
        except UnknownCard:
            return False
        row = card.table.geometry.find(placement.profile)
        if row is None or row.size != placement.size or placement.start not in row.starts:
            return False
        found = card.allocations.get(placement.start)
        return found is not None and (found.placement, found.owner) == (placement, FOREIGN)

    def release(self, allocation: Allocation) -> bool:
        """Frees an allocation's slots; False if it held none (its cards are gone, or it collided)."""
        released = False
        for item in allocation.slices:
            released |= self._release(allocation, item)
        return released

    def _release(self, allocation: Allocation, item: Slice) -> bool:
        if allocation.node not in self.fleet:
            return False
        try:
            held = self.fleet.card(allocation.node, item.gpu_uuid).allocations.get(item.start)
        except UnknownCard:
            return False
        if held is None or held.owner != allocation.owner:
            return False
        self.fleet.release(allocation.node, item.gpu_uuid, item.start)
        return True

    def _occupy_foreign(self, node: NodeName, item: ForeignSlice) -> None:
        """Occupies the free slots of a foreign slice; one by one if an allocation already covers a part of it."""
        whole = CardPlacement(node, item.gpu_uuid, item.profile, item.start, item.size)
        if self._try_occupy(whole):
            return
        for slot in range(item.start, item.start + item.size):
            self._try_occupy(CardPlacement(node, item.gpu_uuid, "", slot, 1))

    def _try_occupy(self, placement: CardPlacement) -> bool:
        try:
            self.fleet.occupy(placement, FOREIGN)
        except (UnknownCard, PlaceOccupied, ValueError):
            return False
        return True


@lru_cache(maxsize=1024)
def _named(geometry: Geometry, names: tuple[tuple[str, tuple[int, ...]], ...]) -> Geometry:
    """Returns the geometry of a card with its names; alike cards share it."""
    rows = ((name, geometry.find(plain_profile(name)), starts) for name, starts in names)
    choices = [
        msgspec.structs.replace(row, name=row.name + name[len(plain_profile(name)) :], starts=kept, aliases=())
        for name, row, starts in rows
        if row is not None and (kept := tuple(each for each in row.starts if not starts or each in starts))
    ]
    return msgspec.structs.replace(geometry, choices=tuple(choices)) if choices else geometry


def _placement(node: NodeName, item: Slice) -> CardPlacement:
    return CardPlacement(node, item.gpu_uuid, item.profile, item.start, item.size)
