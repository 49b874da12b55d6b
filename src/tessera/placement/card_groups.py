"""What a fleet finds cards and nodes by: groups of alike cards of one geometry, and nodes by their free slots.

Nodes are sorted when somebody asks: until then most nodes change more than once.
"""

from collections.abc import Iterator
from itertools import chain

from tessera.placement.card_table import CardTable
from tessera.placement.cards import AlikeCards, FleetNode
from tessera.placement.state_costs import CARD_STATES, Pending, Ranking

#: Entries of :attr:`CardGroups.filled` after which it begins anew.
_FILLED = 512


class CardGroups:
    """All cards of one geometry by their states.

    Args:
        table: costs and arrangements of the geometry.

    Attributes:
        count: the number of cards.
        settled: groups of cards without pending slices, by occupancy. A group that has become empty stays, since a card
            will come again.
        started: the other groups, by occupancy and pending slices; none is empty.
        filled: occupancies whose group got its first card, in this order, for :class:`Ranking`. After a while another
            list begins.
    """

    __slots__ = ("count", "filled", "settled", "started", "table")

    def __init__(self, table: CardTable) -> None:
        self.table = table
        self.count = 0
        self.settled: dict[int, AlikeCards] = {}
        self.started: dict[tuple[int, Pending], AlikeCards] = {}
        self.filled: list[int] = []

    def group(self, occupancy: int, pending: Pending) -> AlikeCards:
        """Returns the group of a state, perhaps an empty one, which must be filled next."""
        if pending:
            group = self.started.get((occupancy, pending))
            if group is None:
                self.table.add_state(occupancy)
                group = self.started[occupancy, pending] = AlikeCards(self.table, occupancy, pending)
            return group
        group = self.settled.get(occupancy)
        if group is None:
            if len(self.settled) >= CARD_STATES:
                self.settled = {state: each for state, each in self.settled.items() if each.count}
            self.table.add_state(occupancy)
            group = self.settled[occupancy] = AlikeCards(self.table, occupancy, ())
        if not group.count:
            if len(self.filled) >= _FILLED:
                self.filled = []
            self.filled.append(occupancy)
        return group

    def drop(self, group: AlikeCards) -> None:
        """Removes a group that has become empty, unless a card will come again."""
        if group.pending:
            del self.started[group.occupancy, group.pending]
        else:
            group.clear()

    def find(self, occupancy: int, pending: Pending) -> AlikeCards | None:
        """Returns the group of a state; None if no card has it."""
        group = self.started.get((occupancy, pending)) if pending else self.settled.get(occupancy)
        return group if group is not None and group.count else None

    def present(self) -> Iterator[AlikeCards]:
        """The groups that have cards."""
        yield from (group for group in self.settled.values() if group.count)
        yield from self.started.values()

    def first(self, ranking: Ranking) -> AlikeCards | None:
        """Returns the first group without pending slices in a ranking of these cards; None if no card has room."""
        log = self.filled
        if ranking.taken != len(log) or ranking.log is not log:
            ranking.read(log)
        maybe = ranking.filled
        while maybe:
            lowest = maybe & -maybe
            group = self.settled.get(ranking.states[lowest.bit_length() - 1])
            if group is not None and group.count:
                ranking.filled = maybe
                return group
            maybe ^= lowest
        ranking.filled = 0
        return None


class NodeOrder:
    """All nodes of a fleet, by free memory slots; of equal ones those that were sorted last come last."""

    def __init__(self) -> None:
        #: All nodes by :attr:`FleetNode.sorted_by`; no inner dict is empty.
        self._by_free: dict[int, dict[FleetNode, None]] = {}
        #: The nodes whose free slots have changed since they were sorted.
        self._changed: list[FleetNode] = []

    def add(self, node: FleetNode) -> None:
        """Adds a node without free slots."""
        self._by_free.setdefault(0, {})[node] = None

    def remove(self, node: FleetNode) -> None:
        """Removes a node."""
        self._sort()
        self._take_out(node)

    def change(self, node: FleetNode) -> None:
        """Takes in that a node's free slots have changed."""
        node.is_sorted = False
        self._changed.append(node)

    def emptiest(self) -> Iterator[FleetNode]:
        """All nodes, the ones with the most free slots first."""
        self._sort()
        return chain.from_iterable(self._by_free[free] for free in sorted(self._by_free, reverse=True))

    def fullest(self) -> Iterator[FleetNode]:
        """Nodes with a free slot at least, fullest first."""
        self._sort()
        for free in sorted(self._by_free):
            if free:
                yield from self._by_free[free]

    def most_free_slots(self) -> int:
        """The most free memory slots that one node has."""
        self._sort()
        return max(self._by_free, default=0)

    def _sort(self) -> None:
        for node in self._changed:
            node.is_sorted = True
            if node.free != node.sorted_by:
                self._take_out(node)
                node.sorted_by = node.free
                nodes = self._by_free.get(node.free)
                if nodes is None:
                    self._by_free[node.free] = {node: None}
                else:
                    nodes[node] = None
        self._changed.clear()

    def _take_out(self, node: FleetNode) -> None:
        nodes = self._by_free[node.sorted_by]
        del nodes[node]
        if not nodes:
            del self._by_free[node.sorted_by]
