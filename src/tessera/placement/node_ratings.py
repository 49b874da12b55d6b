"""Ranks the nodes for a request of whole cards or shares: where the fewest requests to come are blocked.

The order of nodes:

1. Points: how little the pod makes the node's loss grow (:mod:`tessera.placement.room_rating`), in FGD's whole
   points, minus those of opening an empty node of several cards for a pod of one, minus the price of the kind of cards.
   So a pod that any card suits does not take a kind that others will need.
2. Of equals, for a pod of one card, the node where it breaks no pair of cards with NVLinks.
3. Of equals the node with the least free cards.

For a pod of several cards, the nodes of a kind are ordered by how the cards are joined that it would get
(:mod:`tessera.placement.topology`), and then so. Its kind is that whose first node is the best.

Ratings are kept within a bound (:mod:`tessera.placement.rankings`): a node is rated again for a request only
after it or the mix of requests has changed, and nodes with equal room are rated once. ``bench/openb.py`` measures the
rule on traces.

The sizes of nodes, by kind of cards, say which kinds suit a request at all. A request that only the largest nodes can
hold is as bound to their cards as one that names their model: they have a price for others
(:func:`tessera.placement.card_demand.scarcity`). Sizes are rounded up, so that a kind is never left out whose
nodes are large enough by less than a step.
"""

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from heapq import merge
from itertools import chain
from typing import ClassVar, NamedTuple

from tessera.placement.card_demand import (
    CPU_STEP,
    MEMORY_STEP,
    CardDemand,
    CardRequest,
    Kind,
    NodeRoom,
    free_parts,
)
from tessera.placement.demand import StepBudget
from tessera.placement.rankings import Ranking, Rankings, RatedRooms
from tessera.placement.room_rating import AlikeNodes, Rating, RoomIndex
from tessera.placement.topology import LinkRatings


class NodeSize(NamedTuple):
    """What pods can request on a node that is empty.

    Attributes:
        cpu: thousandths of a CPU.
        memory: MiB.
        cards: number of cards of the kind.
    """

    cpu: int
    memory: int
    cards: int


class NodeSizes:
    """The sizes of all nodes with cards of one resource.

    Attributes:
        changes: how often a size came that no node of its kind had, or the last node of a size went.
    """

    def __init__(self) -> None:
        self.changes = 0
        self._nodes: dict[str, tuple[Kind, NodeSize]] = {}
        #: By kind, the nodes of each size; no count is 0, and no inner counter is empty.
        self._sizes: dict[Kind, Counter[NodeSize]] = {}

    def put(self, node: str, kind: Kind = "", size: NodeSize | None = None) -> None:
        """Sets the size of a node and the kind of its cards; None forgets the node."""
        former = self._nodes.get(node)
        new = (kind, _rounded_up(size)) if size is not None else None
        if former == new:
            return
        if former is not None:
            del self._nodes[node]
            self._count(*former, -1)
        if new is not None:
            self._nodes[node] = new
            self._count(*new, 1)

    def _count(self, kind: Kind, size: NodeSize, more: int) -> None:
        sizes = self._sizes.setdefault(kind, Counter())
        before = sizes[size]
        sizes[size] += more
        if not before or not sizes[size]:
            self.changes += 1
        if not sizes[size]:
            del sizes[size]
            if not sizes:
                del self._sizes[kind]

    def narrow(self, request: CardRequest) -> CardRequest:
        """Returns the request with those of its kinds whose nodes can be large enough; with all if none is."""
        kinds = tuple(kind for kind in request.kinds if self._suits(kind, request))
        if not kinds or len(kinds) == len(request.kinds):
            return request
        return request._replace(kinds=kinds, pinned=True)

    def _suits(self, kind: Kind, request: CardRequest) -> bool:
        sizes = self._sizes.get(kind)
        return sizes is None or any(
            size.cpu >= request.cpu and size.memory >= request.memory and size.cards >= request.cards for size in sizes
        )


def _rounded_up(size: NodeSize) -> NodeSize:
    return NodeSize(-(-size.cpu // CPU_STEP) * CPU_STEP, -(-size.memory // MEMORY_STEP) * MEMORY_STEP, size.cards)


#: Points of a kind with a price of 1. Found with ``bench/openb.py``: with 30 multigpu50 loses in some seeds at 95 %,
#: with 50 gpuspec25 and multigpu50 lose at 100 %.
PRICE = 40


class Choice(NamedTuple):
    """A node for a request.

    Attributes:
        node: its name.
        kind: the kind of its cards.
        taken: what is free of the card that the pod takes, of several the first.
        rating: equal for nodes that are equally good.
    """

    node: str
    kind: Kind
    taken: int
    rating: Rating


#: A rating with the price of a kind, the kind, and the rooms with this rating in order.
_Rated = tuple[Rating, Kind, Iterator[AlikeNodes]]


class NodeRatings:
    """All nodes with cards, ranked.

    Args:
        demand: the mix of requests.

    Attributes:
        demand: the mix of requests.
        sizes: how large the nodes are; the caller keeps it.
    """

    #: A record of the state does not have it, and a state that was read makes it anew.
    TRANSIENT: ClassVar[tuple[str, ...]] = ("_index", "_links", "_rankings")
    #: The entries of ``_alike``; None in a state that was read, until a request is ranked.
    _index: RoomIndex | None = None
    #: Ratings of links, which are the same for every mix; None before a request was ranked.
    _links: LinkRatings | None = None
    #: What was computed for the present mix of requests; None before.
    _rankings: Rankings | None = None

    def __init__(self, demand: CardDemand) -> None:
        self.demand = demand
        self.sizes = NodeSizes()
        #: By node, its room.
        self._rooms: dict[str, NodeRoom] = {}
        #: By rounded room, the nodes that have it; no inner dict is empty.
        self._alike: dict[NodeRoom, dict[str, None]] = {}
        #: By kind, free thousandths of all its cards; no value is 0.
        self._free: dict[Kind, int] = {}
        self._index = RoomIndex(self._alike)

    def put(self, node: str, room: NodeRoom | None) -> None:
        """Sets what is free on a node; None forgets the node."""
        former = self._rooms.pop(node, None)
        if room is not None:
            self._rooms[node] = room
        if former == room:
            return
        if former is not None:
            self._count_free(former, -1)
            before = former.rounded
            del self._alike[before][node]
            if not self._alike[before]:
                del self._alike[before]
                if self._index is not None:
                    self._index.remove(before)
        if room is not None:
            self._count_free(room, 1)
            after = room.rounded
            if after not in self._alike:
                nodes = self._alike[after] = {node: None}
                if self._index is not None:
                    self._index.add(after, nodes)
            else:
                self._alike[after][node] = None

    def _count_free(self, room: NodeRoom, sign: int) -> None:
        free = self._free.get(room.kind, 0) + sign * free_parts(room.cards)
        if free:
            self._free[room.kind] = free
        else:
            self._free.pop(room.kind, None)

    def rank(
        self, request: CardRequest, nodes: Iterable[str] | None = None, work: StepBudget | None = None
    ) -> Iterator[Choice]:
        """Yields the nodes that have room, best first; nothing may change meanwhile.

        Args:
            request: what is wanted.
            nodes: the only nodes to rank; None for all. Unknown ones are ignored.
            work: pays for the rooms that are rated anew.
        """
        steps = work or StepBudget(sys.maxsize)
        index, rankings = self._refresh()
        if nodes is None:
            ranking = rankings.of(request.rounded, steps)
            yield from self._choices(ranking, request, None)
            rankings.note_refused()
        else:
            named = self._alike_of(nodes)
            found = {index.entry(room): names for room, names in named.items()}
            yield from self._choices(rankings.rank(request.rounded, found, steps), request, found)

    def _refresh(self) -> tuple[RoomIndex, Rankings]:
        """Returns the index, and what was computed for the present mix."""
        self.demand.fold()
        if self._index is None:
            self._index = RoomIndex(self._alike)
        if self._links is None:
            self._links = LinkRatings()
        if self._rankings is None or self._rankings.typical is not self.demand.typical:
            self._rankings = Rankings(self.demand.typical, self._index, self._links)
        return self._index, self._rankings

    def _alike_of(self, nodes: Iterable[str]) -> Mapping[NodeRoom, list[str]]:
        found: dict[NodeRoom, list[str]] = {}
        for node in nodes:
            if node in self._rooms:
                found.setdefault(self._rooms[node].rounded, []).append(node)
        return found

    def _choices(
        self, ranking: Ranking, request: CardRequest, named: Mapping[AlikeNodes, Iterable[str]] | None
    ) -> Iterator[Choice]:
        """Yields the nodes of a ranking, or those of them that are named, best first."""
        for rating, kind, rooms in self._merge(ranking.orders, request):
            for room in rooms:
                taken: int | None = None
                for node in room.nodes if named is None else named[room]:
                    exact = self._rooms[node]
                    if exact.cpu >= request.cpu and exact.memory >= request.memory:
                        taken = ranking.rating.taken(room) if taken is None else taken
                        yield Choice(node, kind, taken, rating)

    def _merge(self, orders: Mapping[Kind, RatedRooms], request: CardRequest) -> Iterable[_Rated]:
        """Returns the rooms of all kinds by rating, with the prices of the kinds."""
        first: list[tuple[Rating, Kind]] = []
        priced: dict[Kind, Iterator[_Rated]] = {}
        prices = self.demand.prices(self._free) if request.cards else {}
        for kind, order in orders.items():
            best = order.best()
            if best is not None:
                price = PRICE * prices.get(kind, 0.0)
                priced[kind] = _with_price(order, kind, price)
                first.append((best._replace(links=0, points=best.points + price), kind))
        if request.cards <= 1:
            return merge(*priced.values())
        return chain.from_iterable(priced[kind] for _, kind in sorted(first))


def _with_price(order: RatedRooms, kind: Kind, price: float) -> Iterator[_Rated]:
    for rating, rooms in order.walk():
        yield rating._replace(points=rating.points + price) if price else rating, kind, rooms
