"""Cards, nodes and the placements on them.

Placements are values. :class:`FleetCard`, :class:`FleetNode` and :class:`AlikeCards` are the fleet's index: only
``fleet.py`` changes them, other modules only read them.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from tessera.mig.geometry import Geometry, Placement
from tessera.mig.names import plain_profile
from tessera.placement.card_table import CardTable
from tessera.placement.state_costs import Pending, add_profile


class CardPlacement(msgspec.Struct, frozen=True, order=True, gc=False):
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


class OwnedPlacement(msgspec.Struct, frozen=True, gc=False):
    """A placement and its owner.

    Attributes:
        placement: the placement.
        owner: a pod's key, or a description of a foreign instance; for messages and for freeing.
    """

    placement: CardPlacement
    owner: str


#: Owner of slots that are kept for no demand yet, but spare for a queue whose name follows.
SPARE_OF = "Queue/"


class Hold(msgspec.Struct, frozen=True):
    """Slots of one card that are kept for a demand.

    Attributes:
        node: the node's name.
        gpu: the card's UUID.
        bits: the slots and media engines, as in an occupancy.
        owner: key of the demand; :data:`SPARE_OF` and a queue.
    """

    node: str
    gpu: str
    bits: int
    owner: str


class FleetCard:
    """One card in the fleet's index. Only the fleet changes it.

    What cards in the same state share is kept once, in their group: a large fleet is read from memory, not from caches.

    Attributes:
        node: the node.
        gpu: UUID.
        number: its place in the order in which cards were added.
        instances: bits of the instances on the card, see ``tessera.mig.geometry``.
        allocations: by start.
        alike: the group of alike cards to which it belongs.
        filed: at most the node's free slots; see :class:`AlikeCards`.
        entry: the card's entry in a queue of its group; None if nothing fits on the card.
        reserved: bits that ``Fleet.hold`` keeps for demands (key, bits), part of ``occupancy``.
    """

    __slots__ = ("alike", "allocations", "entry", "filed", "gpu", "instances", "node", "number", "reserved")

    def __init__(self, node: "FleetNode", gpu: str, number: int, alike: "AlikeCards") -> None:
        self.node = node
        self.gpu = gpu
        self.number = number
        self.instances = 0
        self.allocations: dict[int, OwnedPlacement] = {}
        self.alike = alike
        self.entry: Entry | None = None
        self.filed = UNRANKED
        self.reserved: tuple[tuple[str, int], ...] = ()

    @property
    def table(self) -> CardTable:
        """Costs and arrangements of its geometry."""
        return self.alike.table

    @property
    def geometry(self) -> Geometry:
        """Returns the possible placements of the card."""
        return self.alike.table.geometry

    @property
    def occupancy(self) -> int:
        """Bits of the instances, and of what holds keep, which planning may not use."""
        return self.alike.occupancy

    @property
    def pending(self) -> Pending:
        """Profiles that the batch being planned gave the card; empty outside of ``plan``."""
        return self.alike.pending

    @property
    def room(self) -> int:
        """Free slots, those of pending instances already taken off."""
        return self.alike.room

    @property
    def claims(self) -> dict[int, int]:
        """By start, the bits that each allocation takes."""
        bits = self.table.bits
        return {
            start: bits[one.placement.profile, start, one.placement.size] for start, one in self.allocations.items()
        }

    def slice_at(self, name: str, start: int) -> CardPlacement:
        """Returns an instance on the card, by the geometry's own name or choice of its profile."""
        return CardPlacement(self.node.name, self.gpu, plain_profile(name), start, self.table.size_of(name))

    @property
    def kept_bits(self) -> int:
        """The bits that holds keep, whether instances take them now or not."""
        kept = 0
        for _, bits in self.reserved:
            kept |= bits
        return kept


#: A card in a queue of :class:`AlikeCards`; each time that a card is filed, it gets a new one.
Entry = tuple[FleetCard]


class FleetNode:
    """A node in the fleet's index.

    Attributes:
        name: its name.
        number: its place in the order in which nodes were added.
        cards: by UUID.
        tables: the tables of its cards, with the number of cards.
        free: free memory slots, those of pending instances and holds already taken off.
        most_filed: at most ``free``; no card of the node is filed by more.
        sorted_by: the free slots by which the fleet last sorted it.
        is_sorted: False if its free slots have changed since.
        values: by UUID of a card, its values that demands compare, by attribute.
        answers: what was computed from the node's state, by any key; None when the state has changed.
    """

    __slots__ = (
        "answers",
        "cards",
        "free",
        "is_sorted",
        "most_filed",
        "name",
        "number",
        "sorted_by",
        "tables",
        "values",
    )

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.number = number
        self.cards: dict[str, FleetCard] = {}
        self.tables: dict[CardTable, int] = {}
        self.free = 0
        self.most_filed = UNRANKED
        self.sorted_by = 0
        self.is_sorted = True
        self.values: Mapping[str, Mapping[str, str]] = {}
        self.answers: dict[object, Any] | None = None

    def values_of(self, gpu: str, attributes: Iterable[str]) -> tuple[str, ...]:
        """Returns values of a card; an empty text for one that it does not have."""
        known = self.values.get(gpu, {})
        return tuple(known.get(each, "") for each in attributes)

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

    Cards of one bound form a queue. When a card leaves, its entry stays there, stale, until it comes first or there are
    too many of them.

    Attributes:
        table: costs and arrangements of the geometry.
        occupancy: bits of the instances on each card, and of what holds keep.
        pending: profiles that the batch being planned gave each card.
        room: free slots of each card, those of pending instances already taken off.
        usable: free slots of each card that some profile could still use, pending instances left aside.
        ranked: True if some profile may still fit. Nobody asks for other cards: they are counted only, and filed under
            :data:`UNRANKED`.
        count: the number of cards.
        entries: those of all queues, with stale ones; none without cards, else about five times the number of cards
            that the group has had at the same time, at most.
    """

    __slots__ = (
        "_frees",
        "_passed",
        "_queues",
        "count",
        "entries",
        "occupancy",
        "pending",
        "ranked",
        "room",
        "table",
        "usable",
    )

    def __init__(self, table: CardTable, occupancy: int, pending: Pending) -> None:
        self.table = table
        self.occupancy = occupancy
        self.pending = pending
        self.room = table.room(occupancy, pending) if pending else table.free_slots(occupancy)
        self.usable = table.usable_slots(occupancy)
        self.ranked = bool(pending) or self.usable > 0
        self.count = 0
        #: Bound -> the entries of the cards filed by it, and stale ones: those that are no longer their card's.
        self._queues: dict[int, deque[Entry]] = {}
        #: The bounds of the queues, as bits.
        self._frees = 0
        self.entries = 0
        #: Stale entries and wrong bounds that :meth:`cards` has passed since they were removed last. To remove them
        #: costs as much as to pass each entry once.
        self._passed = 0

    def place(
        self, profile: str, arrange: Callable[[CardTable, int, Pending], tuple[Placement, ...] | None]
    ) -> Placement:
        """Returns where one more slice goes on such a card, which has room for it.

        Args:
            profile: the slice's profile, in any spelling.
            arrange: chooses the starts of all pending slices of a card.
        """
        name = self.table.names[profile]
        assert name is not None
        arranged = arrange(self.table, self.occupancy, add_profile(self.pending, name)) or ()
        return next(one for one in arranged if one.profile == name)

    def first(self) -> FleetCard:
        """Returns a card of the fullest node. The group is ranked and not empty."""
        while True:
            free = (self._frees & -self._frees).bit_length() - 1
            queue = self._queues[free]
            entry = queue[0]
            (card,) = entry
            if card.entry is not entry:
                self._drop(queue, free, 0)
            elif card.node.free == free:
                return card
            else:
                self._drop(queue, free, 0)
                self._correct(card)

    def _drop(self, queue: deque[Entry], free: int, end: int) -> None:
        """Removes the first (0) or last (-1) entry of a queue."""
        del queue[end]
        self.entries -= 1
        if not queue:
            del self._queues[free]
            self._frees ^= 1 << free

    def cards(self) -> Iterator[FleetCard]:
        """All cards of a ranked group, those of the fullest node first.

        Nothing else may read or change the group until the last card that is wanted has come.
        The first cards of a large group cost little: each queue is read as far as it is asked for.
        """
        if self._passed > self.entries or self.entries > (_ENTRIES - 1) * self.count:
            self.tidy()  # now, so that no card that is filed anew below makes it due
        free = -1
        while later := self._frees >> (free + 1):
            free += (later & -later).bit_length()
            for entry in self._queues[free]:
                (card,) = entry
                if card.entry is not entry:
                    self._passed += 1
                elif card.node.free == free:
                    yield card
                else:
                    self._passed += 1
                    self._correct(card)

    def cards_of_emptiest(self) -> Iterator[FleetCard]:
        """One card of each node, about the emptiest node first; nothing may change the group meanwhile."""
        seen: set[str] = set()
        for free in reversed(range(self._frees.bit_length())):
            queue = self._queues.get(free) or deque[Entry]()
            while queue and queue[-1][0].entry is not queue[-1]:
                self._drop(queue, free, -1)
            for entry in reversed(queue):
                (card,) = entry
                if card.entry is entry and card.node.name not in seen:
                    seen.add(card.node.name)
                    yield card

    def members(self) -> list[FleetCard]:
        """All cards of a ranked group, in no order."""
        self.tidy()
        return [card for queue in self._queues.values() for (card,) in queue]

    def file(self, card: FleetCard, free: int) -> None:
        """Files a card of this group, which is ranked, by a bound."""
        card.filed = free
        entry = card.entry = (card,)
        queue = self._queues.get(free)
        if queue is None:
            self._queues[free] = deque((entry,))
            self._frees |= 1 << free
        else:
            queue.append(entry)
        entries = self.entries = self.entries + 1
        if entries > _ENTRIES * self.count + _STALE:
            self.tidy()

    def _correct(self, card: FleetCard) -> None:
        """Files a card anew whose node has become emptier; its former entry is stale."""
        free = card.node.most_filed = card.node.free
        self.file(card, free)

    def clear(self) -> None:
        """Removes the entries of a group that has no cards, all of them stale."""
        self._queues.clear()
        self._frees = self.entries = self._passed = 0

    def tidy(self) -> None:
        """Removes stale entries."""
        queues, self._queues, self._frees, self.entries, self._passed = self._queues, {}, 0, 0, 0
        for free, entries in queues.items():
            left = deque([entry for entry in entries if entry[0].entry is entry])
            if left:
                self._queues[free] = left
                self._frees |= 1 << free
                self.entries += len(left)


#: Entries of a group for each of its cards, and stale ones however few cards it has, before it is tidied.
_ENTRIES, _STALE = 4, 64
#: :attr:`FleetCard.filed` of cards that nothing fits on.
UNRANKED = -1
