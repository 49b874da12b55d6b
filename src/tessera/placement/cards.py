"""Cards, nodes and the placements on them.

Placements are values. :class:`FleetCard`, :class:`FleetNode` and :class:`AlikeCards` are the fleet's index: only
``fleet.py`` changes them, other modules only read them.
"""

from collections.abc import Iterator
from typing import Any

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


class Hold(msgspec.Struct, frozen=True):
    """Slots of one card that are kept for a demand.

    Attributes:
        node: the node's name.
        gpu: the card's UUID.
        bits: the slots and media engines, as in an occupancy.
        owner: key of the demand.
    """

    node: str
    gpu: str
    bits: int
    owner: str


class FleetCard:
    """One card in the fleet's index. Only the fleet changes it.

    Attributes:
        node: the node.
        gpu: UUID.
        number: its place in the order in which cards were added.
        table: costs and arrangements of its geometry.
        instances: bits of the instances on the card, see ``tessera.mig.geometry``.
        occupancy: the same with the bits that holds keep, which planning may not use.
        pending: profiles that the batch being planned gave the card; empty outside of ``plan``.
        room: free slots, those of pending instances already taken off.
        allocations: by start.
        alike: the group of alike cards to which it belongs.
        filed: at most the node's free slots; see :class:`AlikeCards`.
        reserved: bits that ``Fleet.hold`` keeps for demands (key, bits), part of ``occupancy``.
    """

    __slots__ = (
        "alike",
        "allocations",
        "filed",
        "gpu",
        "instances",
        "node",
        "number",
        "occupancy",
        "pending",
        "reserved",
        "room",
        "table",
    )

    def __init__(self, node: "FleetNode", gpu: str, number: int, table: CardTable, alike: "AlikeCards") -> None:
        self.node = node
        self.gpu = gpu
        self.number = number
        self.table = table
        self.instances = 0
        self.occupancy = 0
        self.pending: Pending = ()
        self.room = table.geometry.slots
        self.allocations: dict[int, OwnedPlacement] = {}
        self.alike = alike
        self.filed = UNRANKED
        self.reserved: tuple[tuple[str, int], ...] = ()

    @property
    def geometry(self) -> Geometry:
        """Returns the possible placements of the card."""
        return self.table.geometry

    @property
    def claims(self) -> dict[int, int]:
        """By start, the bits that each allocation takes."""
        bits_of = self.table.bits_of
        return {
            start: bits_of(one.placement.profile, start, one.placement.size) for start, one in self.allocations.items()
        }

    @property
    def kept_bits(self) -> int:
        """The bits that holds keep, whether instances take them now or not."""
        kept = 0
        for _, bits in self.reserved:
            kept |= bits
        return kept


class FleetNode:
    """A node in the fleet's index.

    Attributes:
        name: its name.
        number: its place in the order in which nodes were added.
        cards: by UUID.
        tables: the tables of its cards, with the number of cards.
        free: free memory slots, those of pending instances and holds already taken off.
        sorted_by: the free slots by which the fleet last sorted it.
        answers: what was computed from the node's state, by any key; emptied when the state changes.
    """

    __slots__ = ("answers", "cards", "free", "name", "number", "sorted_by", "tables")

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.number = number
        self.cards: dict[str, FleetCard] = {}
        self.tables: dict[CardTable, int] = {}
        self.free = 0
        self.sorted_by = 0
        self.answers: dict[object, Any] = {}

    def count_empty(self, profile: str) -> int:
        """Returns the number of cards that have a profile, and have nothing on them, pending or kept."""
        return sum(
            not card.occupancy and not card.pending and card.table.name_of(profile) is not None
            for card in self.cards.values()
        )


class AlikeCards:
    """Cards with equal geometry, occupancy and pending multiset, those of the fullest node first.

    A place on a node changes the order of all of its cards, in as many groups. To keep that cheap, a card is filed by a
    lower bound of its node's free slots, :attr:`FleetCard.filed`. Only a node that becomes fuller than that bound files
    its cards anew; one that becomes emptier does not, and the group corrects such a card when it comes first.

    Attributes:
        ranked: True if some profile may still fit. Nobody asks for an order of other cards: all are under
            :data:`UNRANKED`.
        by_free: bound -> the cards filed by it. No inner dict is empty.
    """

    __slots__ = ("_least", "_looks", "by_free", "ranked")

    def __init__(self, *, ranked: bool) -> None:
        self.ranked = ranked
        self._looks = 0
        #: No card is filed by less.
        self._least = UNRANKED
        self.by_free: dict[int, dict[FleetCard, None]] = {}

    def __len__(self) -> int:
        return sum(map(len, self.by_free.values()))

    def first(self) -> FleetCard:
        """Returns a card of the fullest node."""
        by_free = self.by_free
        while True:
            free = self._least
            cards = by_free.get(free)
            if cards is None:
                self._least = min(by_free)
                continue
            looks = self._looks = self._looks + 1
            if looks * looks > _LOOKS_SQUARED + 4 * len(cards):
                self._looks = 0
                cards = by_free[free] = dict.fromkeys(cards)
            card = next(iter(cards))
            if card.node.free == free or not self.ranked:
                return card
            self.file(card, card.node.free)

    def cards(self) -> Iterator[FleetCard]:
        """All cards, those of the fullest node first. The group may not change meanwhile."""
        last = UNRANKED - 1
        while later := [free for free in self.by_free if free > last]:
            last = min(later)
            for card in list(self.by_free[last]):
                if self.ranked and card.node.free != last:
                    self.file(card, card.node.free)
                else:
                    yield card

    def add(self, card: FleetCard) -> None:
        """Adds a card that is in no group."""
        card.alike = self
        free = card.filed = card.node.free if self.ranked else UNRANKED
        cards = self.by_free.get(free)
        if cards is None:
            self.by_free[free] = {card: None}
            self._least = min(self._least, free)
        else:
            cards[card] = None

    def remove(self, card: FleetCard) -> None:
        """Removes a card."""
        cards = self.by_free[card.filed]
        del cards[card]
        if not cards:
            del self.by_free[card.filed]

    def file(self, card: FleetCard, free: int) -> None:
        """Files a card of this group by another bound."""
        by_free = self.by_free
        former = by_free[card.filed]
        del former[card]
        if not former:
            del by_free[card.filed]
        card.filed = free
        cards = by_free.get(free)
        if cards is None:
            by_free[free] = {card: None}
            self._least = min(self._least, free)
        else:
            cards[card] = None


#: A dict keeps the places of deleted entries, and a look at its first entry passes them. So a group copies the dict
#: after looks whose square is about the number of cards: then neither the looks nor the copies cost much.
_LOOKS_SQUARED = 64
#: The key of :attr:`AlikeCards.by_free` for cards that nothing fits on.
UNRANKED = -1
