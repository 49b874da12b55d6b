"""The cards of a cluster and the instances on them.

Besides the plain record (node, card, allocations) the fleet keeps a histogram: one group for all cards with equal
geometry, occupancy and pending multiset. A decision looks at groups, of which there are at most a few hundred, whatever
the number of cards. Within a group, cards are sorted by how full their nodes are, so that ties go to the fullest node
and whole nodes stay free for requests of several slices.

The fleet is a cache of hardware and API objects. It does not know pods, time, or which demands a node admits.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import merge

from tessera.limits.planning import CARD_MODELS
from tessera.mig.geometry import Geometry
from tessera.placement.card_groups import CardGroups
from tessera.placement.card_table import Candidate, CardTable, Pending, StateCosts
from tessera.placement.cards import UNRANKED, AlikeCards, CardPlacement, FleetCard, FleetNode, Hold, OwnedPlacement

__all__ = ["CardPlacement", "Fleet", "FleetCard", "FleetNode", "OwnedPlacement", "PlaceOccupied", "UnknownCard"]


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
        #: Cards that were ever added.
        self._added = 0
        #: Cards that the fleet has now.
        self._count = 0
        #: All cards by table; no value is empty.
        self._groups: dict[CardTable, CardGroups] = {}
        #: All nodes by :attr:`FleetNode.sorted_by`; no inner dict is empty.
        self._nodes_by_free: dict[int, dict[FleetNode, None]] = {}
        #: The nodes whose free slots have changed since, in the order of their last changes.
        self._unsorted: dict[FleetNode, None] = {}
        #: The slots that are kept for demands.
        self._holds: tuple[Hold, ...] = ()
        #: Nodes whose whole cards or shares have changed, for :meth:`take_changed_nodes`.
        self._changed: dict[str, None] = {}

    # Reading

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of the nodes that have cards."""
        return tuple(self._nodes)

    @property
    def node_count(self) -> int:
        """Number of nodes that have cards."""
        return len(self._nodes)

    def __len__(self) -> int:
        return self._count

    def __contains__(self, node: object) -> bool:
        return node in self._nodes

    def node(self, name: str) -> FleetNode:
        """A node.

        Raises:
            UnknownCard: the fleet does not have it.
        """
        node = self._nodes.get(name)
        if node is None:
            raise UnknownCard(f"the fleet has no node {name}")
        return node

    def cards(self, node: str | None = None) -> Iterator[FleetCard]:
        """The cards of a node, or of all nodes."""
        found = self._nodes.values() if node is None else [self.node(node)]
        for one in found:
            yield from one.cards.values()

    def card(self, node: str, gpu: str) -> FleetCard:
        """A card.

        Raises:
            UnknownCard: the fleet does not have it.
        """
        card = self.node(node).cards.get(gpu)
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
            home = self._nodes[node] = FleetNode(node, self._added)
            self._nodes_by_free.setdefault(0, {})[home] = None
        if gpu in home.cards:
            raise ValueError(f"node {node} has card {gpu} already; remove it before adding it again")
        self.hold(())
        table = self._table(geometry)
        self._change_free(home, geometry.slots)
        group = self._groups_of(table).group(0, ())
        card = home.cards[gpu] = FleetCard(home, gpu, self._added, table, group)
        self._added += 1
        self._count += 1
        group.add(card)
        home.answers.clear()
        home.tables[table] = home.tables.get(table, 0) + 1

    def remove_card(self, node: str, gpu: str) -> tuple[OwnedPlacement, ...]:
        """Removes a card, and its node with the last card; returns the placements on it.

        Raises:
            UnknownCard: the fleet does not have it.
        """
        card = self.card(node, gpu)
        self.hold(())
        card.alike.remove(card)
        if not card.alike.by_free:
            self._drop_group(card)
        del card.node.cards[gpu]
        self._count -= 1
        card.node.answers.clear()
        card.node.tables[card.table] -= 1
        if not card.node.tables[card.table]:
            del card.node.tables[card.table]
        self._change_free(card.node, -card.room)
        if not card.node.cards:
            self._unsorted.pop(card.node, None)
            self._unsort(card.node)
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
        try:
            card = self._nodes[placement.node].cards[placement.gpu]
        except KeyError:
            card = self.card(placement.node, placement.gpu)  # names what is missing
        bits = card.table.bits_of(placement.profile, placement.start, placement.size)
        if bits & card.instances:
            raise PlaceOccupied(self._collision(card, placement, bits))
        card.allocations[placement.start] = OwnedPlacement(placement, owner)
        card.table.mix.count(placement.profile)
        card.instances |= bits
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
        try:
            card = self._nodes[node].cards[gpu]
        except KeyError:
            card = self.card(node, gpu)  # names what is missing
        allocation = card.allocations.pop(start, None)
        if allocation is None:
            raise UnknownCard(f"nothing on card {gpu} of node {node} begins at slot {start}")
        card.instances &= ~card.table.bits_of(allocation.placement.profile, start, allocation.placement.size)
        self.set_state(card, card.kept_bits | card.instances if card.reserved else card.instances, card.pending)
        return allocation

    # Holds

    @property
    def holds(self) -> tuple[Hold, ...]:
        """The slots that are kept for demands."""
        return self._holds

    def hold(self, holds: Iterable[Hold]) -> None:
        """Keeps exactly these slots for demands: no other demand is planned there until the next call.

        Instances may come and go meanwhile, on these slots too. Unknown cards count for nothing. A card that comes or
        goes ends all holds.
        """
        wanted = tuple(holds)
        if wanted == self._holds:
            return
        by_card: dict[tuple[str, str], list[tuple[str, int]]] = {(hold.node, hold.gpu): [] for hold in self._holds}
        for hold in wanted:
            by_card.setdefault((hold.node, hold.gpu), []).append((hold.owner, hold.bits))
        self._holds = wanted
        for (node, gpu), found in by_card.items():
            home = self._nodes.get(node)
            card = home.cards.get(gpu) if home is not None else None
            if card is not None and card.reserved != (reserved := tuple(found)):
                card.reserved = reserved
                self.set_state(card, card.kept_bits | card.instances, card.pending)

    # For plan.py: the histogram

    @property
    def tables(self) -> tuple[CardTable, ...]:
        """The geometries present."""
        return tuple(self._groups)

    def histogram(self) -> dict[Geometry, Counter[int]]:
        """Number of cards by geometry and bits of their instances."""
        found: dict[Geometry, Counter[int]] = {}
        for table, groups in self._groups.items():
            counts = found.setdefault(table.geometry, Counter())
            for occupancy, alike in groups.settled.items():
                counts[occupancy] += len(alike)
            for (occupancy, _pending), alike in groups.started.items():
                counts[occupancy] += len(alike)
        for node, gpu in dict.fromkeys((hold.node, hold.gpu) for hold in self._holds):
            card = self._nodes[node].cards.get(gpu) if node in self._nodes else None
            if card is None:
                continue
            counts = found[card.geometry]
            counts[card.occupancy] -= 1
            counts[card.instances] += 1
        return {geometry: +counts for geometry, counts in found.items()}

    def fragmentation(self, geometry: Geometry, states: Mapping[int, int]) -> float:
        """Mean share of slots that are free but that a random request could not use, for cards of these states."""
        table = self._tables[geometry]
        return sum(table.fragmentation(each) * count for each, count in states.items()) / sum(states.values())

    def candidates(
        self, profile: str, *, costs: Callable[[CardTable], StateCosts] | None = None, spread: bool = False
    ) -> Iterator[AlikeCards]:
        """Groups of alike cards that have room for one more instance of a profile.

        Args:
            profile: its name, in any spelling.
            costs: ranks the states of the cards of a table; by default their fragmentation.
            spread: emptiest cards first instead of those that lose least.
        """
        rankings: list[Iterable[tuple[Candidate, AlikeCards]]] = []
        for table in self._groups:
            name = table.name_of(profile)
            if name is not None:
                rated = costs(table) if costs else table.costs
                ranked = rated.rank_candidates(name)
                started = sorted(
                    one for key in self._groups[table].started if (one := rated.candidate(*key, name)) is not None
                )
                rankings.append(self._present(table, ranked))
                rankings.append(self._present(table, started))
        merged: Iterable[tuple[Candidate, AlikeCards]] = merge(*rankings, key=_rank)
        if spread:
            merged = sorted(merged, key=lambda one: -one[0][1])
        for _, group in merged:
            yield group

    def best_candidate(self, profile: str, costs: Callable[[CardTable], StateCosts]) -> AlikeCards | None:
        """The first of :meth:`candidates`; where only one geometry has the profile, without their merge."""
        only: tuple[CardTable, CardGroups, str] | None = None
        for table, groups in self._groups.items():
            name = table.name_of(profile)
            if name is not None:
                if only is not None or groups.started:
                    return next(self.candidates(profile, costs=costs), None)
                only = (table, groups, name)
        if only is None:
            return None
        table, groups, name = only
        return groups.first(costs(table).rank_states(name))

    def _present(self, table: CardTable, ranked: Iterable[Candidate]) -> Iterator[tuple[Candidate, AlikeCards]]:
        groups = self._groups[table]
        return ((one, group) for one in ranked if (group := groups.find(*one[3:])) is not None)

    def emptiest_nodes(self, of: Iterable[str] | None = None) -> Iterator[FleetNode]:
        """All nodes, or those named, the ones with the most free slots first."""
        if of is not None:
            yield from sorted((self._nodes[name] for name in of), key=lambda node: (-node.free, node.name))
            return
        self._sort_nodes()
        for free in sorted(self._nodes_by_free, reverse=True):
            yield from self._nodes_by_free[free]

    def listed_nodes(self) -> Iterator[FleetNode]:
        """All nodes, in the order in which they were added."""
        yield from self._nodes.values()

    def fullest_nodes(self) -> Iterator[FleetNode]:
        """Nodes with a free slot at least, fullest first."""
        self._sort_nodes()
        for free in sorted(self._nodes_by_free):
            if free:
                yield from self._nodes_by_free[free]

    def most_free_slots(self) -> int:
        """The most free memory slots that one node has."""
        self._sort_nodes()
        return max(self._nodes_by_free, default=0)

    def set_state(self, card: FleetCard, occupancy: int, pending: Pending) -> None:
        """Sets a card's occupancy and pending multiset, and moves the card to its new group."""
        table, node, former = card.table, card.node, card.alike
        former.remove(card)
        card.filed = UNRANKED
        if node.answers:
            node.answers.clear()
        if table.is_device:
            self._changed[node.name] = None
        room = table.room(occupancy, pending) if pending else table.free_slots(occupancy)
        if room != card.room:
            self._change_free(node, room - card.room)
            card.room = room
        self._groups_of(table).group(occupancy, pending).add(card)
        if not former.by_free:
            self._groups[table].drop(card.occupancy, card.pending)
        card.occupancy, card.pending = occupancy, pending

    def take_changed_nodes(self) -> Iterable[str]:
        """Returns the nodes where states of whole cards or shares were set since the last call."""
        found, self._changed = self._changed, {}
        return found

    # The index

    def _table(self, geometry: Geometry) -> CardTable:
        table = self._tables.get(geometry)
        if table is None:
            if len(self._tables) >= CARD_MODELS + len(self._groups):
                self._tables = {each.geometry: each for each in self._groups}
            self._numbers += 1
            table = self._tables[geometry] = CardTable(geometry, self._numbers)
        return table

    def _groups_of(self, table: CardTable) -> CardGroups:
        groups = self._groups.get(table)
        if groups is None:
            groups = self._groups[table] = CardGroups(table)
        return groups

    def _drop_group(self, card: FleetCard) -> None:
        groups = self._groups[card.table]
        groups.drop(card.occupancy, card.pending)
        if not groups:
            del self._groups[card.table]

    def _change_free(self, node: FleetNode, change: int) -> None:
        """Changes a node's free slots, and files its cards anew in their groups if they must not wait."""
        after = node.free = node.free + change
        if change < 0:
            for card in node.cards.values():
                if card.filed > after:
                    card.alike.file(card, after)
        unsorted = self._unsorted
        if node in unsorted:
            del unsorted[node]
        unsorted[node] = None

    def _sort_nodes(self) -> None:
        """Sorts the nodes that have changed; those that changed last are the last among equals."""
        for node in self._unsorted:
            self._unsort(node)
            node.sorted_by = node.free
            nodes = self._nodes_by_free.get(node.free)
            if nodes is None:
                self._nodes_by_free[node.free] = {node: None}
            else:
                nodes[node] = None
        self._unsorted.clear()

    def _unsort(self, node: FleetNode) -> None:
        nodes = self._nodes_by_free[node.sorted_by]
        del nodes[node]
        if not nodes:
            del self._nodes_by_free[node.sorted_by]

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


def _rank(one: tuple[Candidate, AlikeCards]) -> Candidate:
    return one[0]
