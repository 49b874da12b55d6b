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

from msgspec import structs

from tessera.limits import CARD_MODELS
from tessera.mig.geometry import Geometry, Placement
from tessera.placement.card_groups import CardGroups, NodeOrder
from tessera.placement.card_table import CardTable, RequestMix
from tessera.placement.cards import UNRANKED, AlikeCards, CardPlacement, FleetCard, FleetNode, Hold, OwnedPlacement
from tessera.placement.state_costs import Candidate, Pending, StateCosts

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
        #: The kind of object in which nodes report their cards, while the cluster lacks it; else empty.
        self.missing_kind = ""
        #: The nodes that have cards, in the order in which they were added.
        self._nodes: dict[str, FleetNode] = {}
        #: One table for each geometry: those of ``_groups``, the same without choices, and ``CARD_MODELS`` former ones.
        self._tables: dict[Geometry, CardTable] = {}
        #: Number of the newest table.
        self._numbers = 0
        #: Cards that were ever added.
        self._added = 0
        #: Cards that the fleet has now.
        self._count = 0
        #: All cards by table; none without cards.
        self._groups: dict[CardTable, CardGroups] = {}
        self._order = NodeOrder()
        #: The slots that are kept for demands, by node; nothing in it is empty.
        self._holds: dict[str, tuple[Hold, ...]] = {}
        #: By the kinds of nodes, as numbers of their tables with the cards of each, by profiles, and how they lie on
        #: the cards (a :data:`.CardSpread`): whether an empty node could hold them. Of more than
        #: ``REMEMBERED_DEMANDS`` the oldest is forgotten.
        self.fits_when_empty: dict[tuple[object, tuple[str, ...], object], bool] = {}
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
            self._order.add(home)
        if gpu in home.cards:
            raise ValueError(f"node {node} has card {gpu} already; remove it before adding it again")
        self.hold(())
        table = self._table(geometry)
        self._change_free(home, geometry.slots)
        groups = self._groups.setdefault(table, CardGroups(table))
        group = groups.group(0, ())
        card = home.cards[gpu] = FleetCard(home, gpu, self._added, group)
        self._added += 1
        self._count += 1
        groups.count += 1
        group.count += 1
        if group.ranked:
            home.most_filed = home.free
            group.file(card, home.free)
        home.answers = None
        home.tables[table] = home.tables.get(table, 0) + 1

    def remove_card(self, node: str, gpu: str) -> tuple[OwnedPlacement, ...]:
        """Removes a card, and its node with the last card; returns the placements on it.

        Raises:
            UnknownCard: the fleet does not have it.
        """
        card = self.card(node, gpu)
        self.hold(())
        groups = self._groups[card.table]
        card.alike.count -= 1
        if not card.alike.count:
            groups.drop(card.alike)
        card.filed, card.entry = UNRANKED, None
        groups.count -= 1
        if not groups.count:
            del self._groups[card.table]
        del card.node.cards[gpu]
        self._count -= 1
        card.node.answers = None
        card.node.tables[card.table] -= 1
        if not card.node.tables[card.table]:
            del card.node.tables[card.table]
        self._change_free(card.node, -card.room)
        if not card.node.cards:
            self._order.remove(card.node)
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
        table = card.alike.table
        bits = table.bits[placement.profile, placement.start, placement.size]
        if bits & card.instances:
            raise PlaceOccupied(self._collision(card, placement, bits))
        card.allocations[placement.start] = OwnedPlacement(placement, owner)
        table.mix.count(placement.profile)
        self._set_instances(card, card.instances | bits)

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
        placement = allocation.placement
        bits = card.alike.table.bits[placement.profile, start, placement.size]
        self._set_instances(card, card.instances & ~bits)
        return allocation

    # Holds

    @property
    def holds(self) -> tuple[Hold, ...]:
        """The slots that are kept for demands."""
        return tuple(hold for found in self._holds.values() for hold in found)

    def hold(self, holds: Iterable[Hold]) -> None:
        """Keeps exactly these slots for demands: no other demand is planned there until the next call.

        Instances may come and go meanwhile, on these slots too. Unknown cards count for nothing. A card that comes or
        goes ends all holds.
        """
        wanted: dict[str, list[Hold]] = {node: [] for node in self._holds}
        for hold in holds:
            wanted.setdefault(hold.node, []).append(hold)
        for node, found in wanted.items():
            self.hold_on(node, found)

    @property
    def has_holds(self) -> bool:
        """True if slots are kept for demands."""
        return bool(self._holds)

    def holds_on(self, node: str) -> tuple[Hold, ...]:
        """Returns the slots of a node that are kept for demands."""
        return self._holds.get(node, ())

    def hold_on(self, node: str, holds: Iterable[Hold]) -> None:
        """Keeps exactly these slots of a node, and changes nothing of others; see :meth:`hold`."""
        before, wanted = self._holds.pop(node, ()), tuple(holds)
        if wanted:
            self._holds[node] = wanted
        if wanted == before:
            return
        by_card: dict[str, list[tuple[str, int]]] = {hold.gpu: [] for hold in before}
        for hold in wanted:
            by_card.setdefault(hold.gpu, []).append((hold.owner, hold.bits))
        home = self._nodes.get(node)
        for gpu, found in by_card.items():
            card = home.cards.get(gpu) if home is not None else None
            if card is not None and card.reserved != (reserved := tuple(found)):
                card.reserved = reserved
                self._set_instances(card, card.instances)

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
            for alike in groups.present():
                counts[alike.occupancy] += alike.count
        for node, gpu in dict.fromkeys((hold.node, hold.gpu) for hold in self.holds):
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
                ranked = rated.rank_states(name).candidates
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

    def best_place(self, profile: str, costs: Callable[[CardTable], StateCosts]) -> tuple[AlikeCards, Placement] | None:
        """The first of :meth:`candidates`, and where the slice goes there; None without room.

        Where only one geometry has the profile, without merging rankings.
        """
        only: tuple[CardTable, CardGroups, str] | None = None
        for table, groups in self._groups.items():
            name = table.names[profile]
            if name is not None:
                if only is not None or groups.started:
                    return self._best_of_several(profile, costs)
                only = (table, groups, name)
        if only is None:
            return None
        table, groups, name = only
        ranking = costs(table).rank_states(name)
        group = groups.first(ranking)
        return None if group is None else (group, ranking.placed[group.occupancy])

    def _best_of_several(
        self, profile: str, costs: Callable[[CardTable], StateCosts]
    ) -> tuple[AlikeCards, Placement] | None:
        for group in self.candidates(profile, costs=costs):
            return group, group.place(profile, lambda table, *state: costs(table).arrangement(*state))
        return None

    def _present(self, table: CardTable, ranked: Iterable[Candidate]) -> Iterator[tuple[Candidate, AlikeCards]]:
        groups = self._groups[table]
        return ((one, group) for one in ranked if (group := groups.find(*one[3:])) is not None)

    def emptiest_nodes(self, of: Iterable[str] | None = None) -> Iterator[FleetNode]:
        """All nodes, or those named, the ones with the most free slots first."""
        if of is None:
            return self._order.emptiest()
        return iter(sorted((self._nodes[name] for name in of), key=lambda node: (-node.free, node.name)))

    def listed_nodes(self) -> Iterator[FleetNode]:
        """All nodes, in the order in which they were added."""
        yield from self._nodes.values()

    def fullest_nodes(self) -> Iterator[FleetNode]:
        """Nodes with a free slot at least, fullest first."""
        return self._order.fullest()

    def most_free_slots(self) -> int:
        """The most free memory slots that one node has."""
        return self._order.most_free_slots()

    def set_state(self, card: FleetCard, occupancy: int, pending: Pending) -> None:
        """Sets a card's occupancy and pending multiset, and moves the card to its new group."""
        former, node = card.alike, card.node
        table = former.table
        groups = self._groups[table]
        former.count -= 1
        if not former.count:
            groups.drop(former)
        card.filed, card.entry = UNRANKED, None
        node.answers = None
        if table.is_device:
            self._changed[node.name] = None
        group = None if pending else groups.settled.get(occupancy)
        if group is None or not group.count:
            group = groups.group(occupancy, pending)
        card.alike = group
        group.count += 1
        if group.room != former.room:
            self._change_free(node, group.room - former.room)
        if group.ranked:
            node.most_filed = node.free
            group.file(card, node.free)

    def _set_instances(self, card: FleetCard, instances: int) -> None:
        """Sets the bits of a card's instances; what holds keep stays kept."""
        if card.reserved:
            card.instances = instances
            self.set_state(card, card.kept_bits | instances, card.alike.pending)
        else:
            self.set_state(card, instances, card.alike.pending)
            card.instances = card.alike.occupancy  # the one number that all cards of the state share

    def take_changed_nodes(self) -> Iterable[str]:
        """Returns the nodes where states of whole cards or shares were set since the last call."""
        found, self._changed = self._changed, {}
        return found

    # The index

    def _table(self, geometry: Geometry) -> CardTable:
        table = self._tables.get(geometry)
        if table is None:
            mix = self._table(structs.replace(geometry, choices=())).mix if geometry.choices else RequestMix()
            if len(self._tables) >= CARD_MODELS + 2 * len(self._groups):
                kept = {
                    each
                    for table in self._groups
                    for each in (table.geometry, structs.replace(table.geometry, choices=()))
                }
                self._tables = {each: table for each, table in self._tables.items() if each in kept}
            self._numbers += 1
            table = self._tables[geometry] = CardTable(geometry, self._numbers, mix)
        return table

    def _change_free(self, node: FleetNode, change: int) -> None:
        """Changes a node's free slots, and files its cards anew in their groups if they must not wait."""
        after = node.free = node.free + change
        if after < node.most_filed:
            node.most_filed = after
            for card in node.cards.values():
                if card.filed > after:
                    card.alike.file(card, after)
        if node.is_sorted:
            self._order.change(node)

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
