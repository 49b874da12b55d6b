"""Ranks the nodes for a request of whole cards or shares: where the fewest requests to come are blocked.

The order of nodes:

1. Points: how little the pod makes the node's loss grow (:mod:`tessera.placement.ratings.room_loss`), in FGD's whole
   points, minus those of opening an empty node of several cards for a pod of one, minus the price of the kind of cards.
   So a pod that any card suits does not take a kind that others will need.
2. Of equals, for a pod of one card, the node where it breaks no pair of cards with NVLinks.
3. Of equals the node with the least free cards.

For a pod of several cards, the nodes of a kind are ordered by how the cards are joined that it would get
(:mod:`tessera.placement.link_ratings`), and then so. Its kind is that whose first node is the best.

Ratings are kept: a node is rated again for a request only after it or the mix of requests has changed, and nodes with
equal room are rated once. ``bench/openb.py`` measures the rule on traces.
"""

import math
import sys
from bisect import insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import merge
from itertools import chain, islice
from typing import ClassVar, NamedTuple

from tessera.limits.planning import RANKED_REQUESTS
from tessera.placement.link_ratings import LinkRatings
from tessera.placement.ratings.card_demand import CardDemand, TypicalRequests
from tessera.placement.ratings.card_request import (
    CARD,
    CPU_STEP,
    MEMORY_STEP,
    CardRequest,
    Kind,
    NodeRoom,
    free_cards,
    free_parts,
    list_uses,
)
from tessera.placement.ratings.room_loss import RoomLoss
from tessera.placement.step_budget import StepBudget

#: Points of a kind whose free cards equal the pinned requests to come.
PRICE = 30
#: Points that an empty node of so many cards is worse for a pod of one card.
OPENING, SEVERAL_CARDS = 10, 4
#: Rooms that a ranking may remember besides those of nodes.
_STALE = 4_096
#: Steps of :class:`tessera.placement.step_budget.StepBudget` that the rating of a room costs.
_STEPS_A_ROOM = 4


class Choice(NamedTuple):
    """A node for a request.

    Attributes:
        node: its name.
        kind: the kind of its cards.
        taken: what is free of the card that the pod takes, of several the first.
    """

    node: str
    kind: Kind
    taken: int


#: A room in its order, least first: negated points of links, negated points, points of the link that is broken, free
#: thousandths, what tells it from others, the room, what is free of the card that is taken.
_Entry = tuple[int, float, int, int, tuple[object, ...], NodeRoom, int]


class NodeRatings:
    """All nodes with cards, ranked.

    Args:
        demand: the mix of requests.
    """

    #: A record of the state does not have it, and a state that was read makes it anew.
    TRANSIENT: ClassVar[tuple[str, ...]] = ("_rankings",)
    #: What was computed for the present mix of requests; None before.
    _rankings: "_Rankings | None" = None

    def __init__(self, demand: CardDemand) -> None:
        self.demand = demand
        #: By node, its room.
        self._rooms: dict[str, NodeRoom] = {}
        #: By rounded room, the nodes that have it; no inner dict is empty.
        self._alike: dict[NodeRoom, dict[str, None]] = {}
        #: By kind, free thousandths of all its cards; no value is 0.
        self._free: dict[Kind, int] = {}

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
        if room is not None:
            self._count_free(room, 1)
            after = room.rounded
            if after not in self._alike and self._rankings is not None:
                self._rankings.announce(after)
            self._alike.setdefault(after, {})[node] = None

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
        self.demand.fold()
        rankings = self._rankings
        if rankings is None or rankings.typical is not self.demand.typical:
            rankings = self._rankings = _Rankings(self.demand.typical, self._alike)
        if nodes is None:
            alike: Mapping[NodeRoom, Iterable[str]] = self._alike
            entries: Mapping[Kind, Sequence[_Entry]] = rankings.of(request.rounded, steps)
        else:
            alike = self._alike_of(nodes)
            entries = rankings.rate_all(request.rounded, alike, steps)
        for *_, room, taken in self._merge(entries, request):
            for node in alike.get(room, ()):
                exact = self._rooms[node]
                if exact.cpu >= request.cpu and exact.memory >= request.memory:
                    yield Choice(node, room.kind, taken)

    def _alike_of(self, nodes: Iterable[str]) -> Mapping[NodeRoom, list[str]]:
        found: dict[NodeRoom, list[str]] = {}
        for node in nodes:
            if node in self._rooms:
                found.setdefault(self._rooms[node].rounded, []).append(node)
        return found

    def _merge(self, entries: Mapping[Kind, Sequence[_Entry]], request: CardRequest) -> Iterator[_Entry]:
        """Yields the entries of all kinds in order, with the prices of the kinds."""
        priced: list[tuple[Sequence[_Entry], float]] = []
        free = sum(self._free.values())
        for kind, ranked in entries.items():
            if ranked:
                price = self.demand.price(kind, free, self._free.get(kind, 0)) if request.cards else 0.0
                priced.append((ranked, PRICE * price))
        if request.cards <= 1:
            return merge(*(_add_price(ranked, price) if price else ranked for ranked, price in priced))
        priced.sort(key=lambda one: (one[0][0][1] + one[1], *one[0][0][2:5]))
        return chain.from_iterable(ranked for ranked, _ in priced)


class _Rankings:
    """What was computed for one mix of requests.

    Args:
        typical: the mix.
        alike: the rooms that nodes have; it changes.

    Attributes:
        typical: the mix.
    """

    def __init__(self, typical: TypicalRequests, alike: Mapping[NodeRoom, object]) -> None:
        self.typical = typical
        self._loss = RoomLoss(typical)
        self._links = LinkRatings()
        self._alike = alike
        #: Rooms that nodes came to have, in order; each ranking reads on where it stopped.
        self._news: list[NodeRoom] = []
        #: By rounded request, the last used at the end.
        self._rankings: dict[CardRequest, _Ranking] = {}

    def announce(self, room: NodeRoom) -> None:
        """Takes in that a node came to have a room that none had."""
        if len(self._news) >= _STALE + 4 * len(self._alike):
            self._rankings.clear()
            self._news.clear()
        self._news.append(room)

    def of(self, request: CardRequest, work: StepBudget) -> Mapping[Kind, Sequence[_Entry]]:
        """Returns, by kind, the rooms that nodes have now, best first for a rounded request, and some that none has."""
        ranking = self._rankings.pop(request, None)
        if ranking is None:
            if len(self._rankings) >= RANKED_REQUESTS:
                del self._rankings[next(iter(self._rankings))]
            ranking = _Ranking(request.kinds)
            news: Iterable[NodeRoom] = self._alike
        else:
            news = islice(self._news, ranking.read, None)
        ranking.read = len(self._news)
        for room in news:
            if ranking.lacks(room) and room in self._alike:
                work.spend(_STEPS_A_ROOM)
                ranking.add(self._rate(request, room))
        ranking.drop_first(self._alike)
        self._rankings[request] = ranking
        return ranking.entries

    def rate_all(
        self, request: CardRequest, rooms: Iterable[NodeRoom], work: StepBudget
    ) -> Mapping[Kind, Sequence[_Entry]]:
        """Returns, by kind, these rooms, best first for a rounded request."""
        ranking = _Ranking(request.kinds)
        for room in rooms:
            if ranking.lacks(room):
                work.spend(_STEPS_A_ROOM)
                ranking.add(self._rate(request, room))
        return ranking.entries

    def _rate(self, request: CardRequest, room: NodeRoom) -> _Entry | None:
        """Returns the entry of a room; None if it is too small."""
        if request.cpu - room.cpu >= 2 * CPU_STEP or request.memory - room.memory >= 2 * MEMORY_STEP:
            return None  # further apart than both were rounded
        uses = list_uses(room.cards, request)
        if not uses:
            return None
        cpu, memory = max(0, room.cpu - request.cpu), max(0, room.memory - request.memory)
        lost = self._loss(room)
        points, taken = max(
            (_points(lost - self._loss(NodeRoom(room.kind, after, cpu, memory, unused=False))), -taken)
            for taken, after in uses
        )
        count = free_cards(room.cards)
        if request.cards <= 1 and room.unused and count >= SEVERAL_CARDS:
            points -= OPENING
        links = broken = 0
        if room.joined is not None and request.cards > 1:
            links = self._links.points(room.joined, count, request.cards)
        elif room.joined is not None and request.cards:
            broken = self._links.loss(room.joined, count)
        return (-links, -points, broken, free_parts(room.cards), (*room[:-1], str(room.joined)), room, -taken)


class _Ranking:
    """Rooms, ranked for one request.

    Args:
        kinds: the kinds of cards that suit.

    Attributes:
        read: the news that it has read.
        entries: by kind, the rooms, best first.
    """

    def __init__(self, kinds: Iterable[Kind]) -> None:
        self.read = 0
        self.entries: dict[Kind, list[_Entry]] = {kind: [] for kind in kinds}
        #: The rooms in ``entries``.
        self._ranked: set[NodeRoom] = set()

    def lacks(self, room: NodeRoom) -> bool:
        """True for a room of a suitable kind that has no entry."""
        return room.kind in self.entries and room not in self._ranked

    def add(self, entry: _Entry | None) -> None:
        """Adds an entry; None is no error."""
        if entry is not None:
            room = entry[-2]
            self._ranked.add(room)
            insort(self.entries[room.kind], entry)

    def drop_first(self, alike: Mapping[NodeRoom, object]) -> None:
        """Drops the first rooms of each kind that no node has any more."""
        for entries in self.entries.values():
            while entries and entries[0][-2] not in alike:
                self._ranked.remove(entries.pop(0)[-2])


def _add_price(entries: Iterable[_Entry], price: float) -> Iterator[_Entry]:
    return ((links, points + price, *rest) for links, points, *rest in entries)  # type: ignore[misc]


def _points(gain: float) -> int:
    return int(100 / (1 + math.exp(-gain / CARD)))
