"""The cards of a cluster and the instances on them.

Besides the plain record (node, card, allocations) the fleet keeps a histogram: one group for all cards with equal
geometry, occupancy and pending multiset. A decision looks at groups, of which there are at most a few hundred, whatever
the number of cards. Within a group, nodes are sorted by how full they are, so that ties go to the fullest node and
whole nodes stay free for requests of several slices.

The fleet is a cache of hardware and API objects. It does not know pods, time, or which demands a node admits.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from heapq import merge
from typing import TypeVar

from tessera.limits.planning import CARD_MODELS
from tessera.mig.geometry import Geometry
from tessera.placement.card_table import Candidate, CardTable, Pending
from tessera.placement.cards import AlikeCards, CardPlacement, FleetCard, FleetNode, OwnedPlacement

__all__ = ["CardPlacement", "Fleet", "FleetCard", "FleetNode", "OwnedPlacement", "PlaceOccupied", "UnknownCard"]

Entry = TypeVar("Entry")


class UnknownCard(KeyError):  # noqa: N818 - the name says what is wrong
    """A node or card that the fleet does not have."""

    def __str__(self) -> str:
        return str(self.args[0])


class PlaceOccupied(ValueError):  # noqa: N818 - the name says what is wrong
    """Slots or media engines that another allocation holds."""


class Fleet:
    """All cards that slices may go to."""

    def __init__(self) -> None:
        #: The nodes that have cards, in the order in which they were added.
        self._nodes: dict[str, FleetNode] = {}
        #: One table for each geometry: those of ``_groups``, and at most ``CARD_MODELS`` former ones.
        self._tables: dict[Geometry, CardTable] = {}
        #: Number of the newest table.
        self._numbers = 0
        #: All cards by table and state (occupancy, pending); no group is empty.
        self._groups: dict[CardTable, dict[tuple[int, Pending], AlikeCards]] = {}
        #: The keys of ``_groups`` with pending slices.
        self._open: dict[CardTable, set[tuple[int, Pending]]] = {}
        #: All nodes by their free slots; no inner dict is empty.
        self._nodes_by_free: dict[int, dict[str, FleetNode]] = {}

    # Reading

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of the nodes that have cards."""
        return tuple(self._nodes)

    def __len__(self) -> int:
        return sum(len(node.cards) for node in self._nodes.values())

    def __contains__(self, node: object) -> bool:
        return node in self._nodes

    def cards(self, node: str | None = None) -> Iterator[FleetCard]:
        """The cards of a node, or of all nodes."""
        found = self._nodes.values() if node is None else [self._node(node)]
        for one in found:
            yield from one.cards.values()

    def card(self, node: str, gpu: str) -> FleetCard:
        """A card.

        Raises:
            UnknownCard: the fleet does not have it.
        """
        card = self._node(node).cards.get(gpu)
        if card is None:
            raise UnknownCard(f"node {node} has no card {gpu}; its cards are {', '.join(self._nodes[node].cards)}")
        return card

    def allocations(self) -> Iterator[OwnedPlacement]:
        """Yields all allocations, card by card."""
        for card in self.cards():
            yield from card.allocations.values()

    @property
    def profiles(self) -> tuple[str, ...]:
        """Every profile that some card has, sorted."""
        return tuple(sorted({name for table in self._groups for name in table.geometry.names}))

    # Changes

    def add_card(self, node: str, gpu: str, geometry: Geometry) -> None:
        """Adds an empty card, and its node with the first one.

        Raises:
            ValueError: the node has a card of that UUID.
        """
        home = self._nodes.get(node)
        if home is None:
            home = self._nodes[node] = FleetNode(node)
            self._nodes_by_free.setdefault(0, {})[node] = home
        if gpu in home.cards:
            raise ValueError(f"node {node} has card {gpu} already; remove it before adding it again")
        card = FleetCard(home, gpu, self._table(geometry))
        home.cards[gpu] = card
        self._index(card)
        self._move_node(home, geometry.slots)

    def remove_card(self, node: str, gpu: str) -> tuple[OwnedPlacement, ...]:
        """Removes a card, and its node with the last card; returns the placements on it.

        Raises:
            UnknownCard: the fleet does not have it.
        """
        card = self.card(node, gpu)
        self._move_node(card.node, -card.table.room(card.occupancy, ()))
        self._unindex(card)
        del card.node.cards[gpu]
        if not card.node.cards:
            self._remove_entry(self._nodes_by_free, card.node.free, node)
            del self._nodes[node]
        return tuple(card.allocations.values())

    def remove_node(self, node: str) -> tuple[OwnedPlacement, ...]:
        """Removes a node and its cards; returns the placements on them. An unknown node is no error."""
        cards = list(self._nodes[node].cards) if node in self._nodes else []
        return tuple(allocation for gpu in cards for allocation in self.remove_card(node, gpu))

    def occupy(self, placement: CardPlacement, owner: str) -> None:
        """Records an instance on a card, ours or foreign.

        Raises:
            UnknownCard: the fleet does not have the card.
            PlaceOccupied: slots or media engines are held already.
            ValueError: the placement leaves the card.
        """
        card = self.card(placement.node, placement.gpu)
        bits = card.table.mask_of(placement.on_card)
        if bits & card.occupancy:
            raise PlaceOccupied(self._collision(card, placement, bits))
        card.allocations[placement.start] = OwnedPlacement(placement, owner)
        self.set_state(card, card.occupancy | bits, card.pending)

    def occupy_all(self, placements: Iterable[CardPlacement], owner: str) -> None:
        """Records one owner's placements, all of them or, when one is refused, none.

        Raises:
            UnknownCard, PlaceOccupied, ValueError: as ``occupy``.
        """
        done: list[CardPlacement] = []
        try:
            for placement in placements:
                self.occupy(placement, owner)
                done.append(placement)
        except (UnknownCard, ValueError):
            for placement in done:
                self.release(placement.node, placement.gpu, placement.start)
            raise

    def release(self, node: str, gpu: str, start: int) -> OwnedPlacement:
        """Removes the allocation that begins at a slot, and returns it.

        Raises:
            UnknownCard: the fleet does not have the card, or nothing begins there.
        """
        card = self.card(node, gpu)
        allocation = card.allocations.pop(start, None)
        if allocation is None:
            raise UnknownCard(f"nothing on card {gpu} of node {node} begins at slot {start}")
        self.set_state(card, card.occupancy & ~card.table.mask_of(allocation.placement.on_card), card.pending)
        return allocation

    # For plan.py: the histogram

    @property
    def tables(self) -> tuple[CardTable, ...]:
        """The geometries present."""
        return tuple(self._groups)

    def histogram(self) -> dict[Geometry, Counter[int]]:
        """Number of cards by geometry and occupancy."""
        found: dict[Geometry, Counter[int]] = {}
        for table, groups in self._groups.items():
            counts = found.setdefault(table.geometry, Counter())
            for (occupancy, _pending), alike in groups.items():
                counts[occupancy] += sum(len(cards) for cards in alike.nodes())
        return found

    def fragmentation(self, geometry: Geometry, states: Mapping[int, int]) -> float:
        """Mean share of slots that are free but that a random request could not use, for cards of these states."""
        table = self._tables[geometry]
        return sum(table.fragmentation(each) * count for each, count in states.items()) / sum(states.values())

    def candidates(self, profile: str, *, spread: bool = False) -> Iterator[AlikeCards]:
        """Groups of alike cards that have room for one more instance of a profile.

        Args:
            profile: its name, in any spelling.
            spread: emptiest cards first instead of those that lose least.
        """
        tables: dict[int, CardTable] = {}
        rankings: list[Iterable[Candidate]] = []
        for table in self._groups:
            name = table.name_of(profile)
            if name is not None:
                tables[table.number] = table
                rankings.append(table.rank_candidates(name))
                started = (table.candidate(*key, name) for key in self._open.get(table, ()))
                rankings.append(sorted(one for one in started if one is not None))
        ranked: Iterable[Candidate] = merge(*rankings)
        if spread:
            ranked = sorted(ranked, key=lambda one: -one[1])
        for _, _, number, occupancy, pending in ranked:
            group = self._groups[tables[number]].get((occupancy, pending))
            if group is not None:
                yield group

    def emptiest_nodes(self, of: Iterable[str] | None = None) -> Iterator[FleetNode]:
        """All nodes, or those named, the ones with the most free slots first."""
        if of is not None:
            yield from sorted((self._nodes[name] for name in of), key=lambda node: (-node.free, node.name))
            return
        for free in sorted(self._nodes_by_free, reverse=True):
            yield from self._nodes_by_free[free].values()

    def listed_nodes(self) -> Iterator[FleetNode]:
        """All nodes, in the order in which they were added."""
        yield from self._nodes.values()

    def fullest_nodes(self) -> Iterator[FleetNode]:
        """Nodes with a free slot at least, fullest first."""
        for free in sorted(self._nodes_by_free):
            if free:
                yield from self._nodes_by_free[free].values()

    def most_free_slots(self) -> int:
        """The most free memory slots that one node has."""
        return max(self._nodes_by_free, default=0)

    def set_state(self, card: FleetCard, occupancy: int, pending: Pending) -> None:
        """Sets a card's occupancy and pending multiset, and moves the card to its new group."""
        before, after = card.table.room(card.occupancy, card.pending), card.table.room(occupancy, pending)
        self._unindex(card)
        card.occupancy, card.pending = occupancy, pending
        self._index(card)
        self._move_node(card.node, after - before)

    # The index

    def _table(self, geometry: Geometry) -> CardTable:
        table = self._tables.get(geometry)
        if table is None:
            if len(self._tables) >= CARD_MODELS + len(self._groups):
                self._tables = {each.geometry: each for each in self._groups}
            self._numbers += 1
            table = self._tables[geometry] = CardTable(geometry, self._numbers)
        return table

    def _node(self, name: str) -> FleetNode:
        node = self._nodes.get(name)
        if node is None:
            raise UnknownCard(f"the fleet has no node {name}")
        return node

    def _index(self, card: FleetCard) -> None:
        card.table.add_state(card.occupancy)
        groups = self._groups.setdefault(card.table, {})
        key = (card.occupancy, card.pending)
        group = groups.get(key)
        if group is None:
            group = groups[key] = AlikeCards()
            if card.pending:
                self._open.setdefault(card.table, set()).add(key)
        node = card.node
        group.by_free.setdefault(node.free, {}).setdefault(node.name, {})[card.gpu] = card

    def _unindex(self, card: FleetCard) -> None:
        groups = self._groups[card.table]
        key = (card.occupancy, card.pending)
        by_free = groups[key].by_free
        node = card.node
        alike = by_free[node.free][node.name]
        del alike[card.gpu]
        if not alike:
            self._remove_entry(by_free, node.free, node.name)
            if not by_free:
                del groups[key]
                if card.pending:
                    self._open[card.table].discard(key)
                if not groups:
                    del self._groups[card.table]

    def _move_node(self, node: FleetNode, change: int) -> None:
        """Moves a node, in every group that has cards of it, to another count of free slots."""
        if not change:
            return
        before, after = node.free, node.free + change
        keys = {(card.table, card.occupancy, card.pending) for card in node.cards.values()}
        for table, occupancy, pending in keys:
            by_free = self._groups[table][occupancy, pending].by_free
            alike = by_free[before][node.name]
            self._remove_entry(by_free, before, node.name)
            by_free.setdefault(after, {})[node.name] = alike
        self._remove_entry(self._nodes_by_free, before, node.name)
        self._nodes_by_free.setdefault(after, {})[node.name] = node
        node.free = after

    @staticmethod
    def _remove_entry(by_free: dict[int, dict[str, Entry]], free: int, node: str) -> None:
        del by_free[free][node]
        if not by_free[free]:
            del by_free[free]

    @staticmethod
    def _collision(card: FleetCard, placement: CardPlacement, bits: int) -> str:
        holders = [
            f"{held.placement.profile} at {held.placement.start} of {held.owner}"
            for held in card.allocations.values()
            if bits & card.table.mask_of(held.placement.on_card)
        ]
        return (
            f"node {placement.node}, card {placement.gpu}: {placement.profile} at {placement.start} meets"
            f" {', '.join(holders)}; an instance shares neither slots nor media engines"
        )
