"""The nodes by their free slots, sorted when somebody asks: until then most nodes change more than once."""

from collections.abc import Iterator
from itertools import chain

from tessera.placement.cards import FleetNode


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
