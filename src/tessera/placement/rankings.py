"""Rankings of rooms that are kept for requests, within a bound on their entries.

A new ranking is kept once a node from it was taken, so pods that no node admits leave none. Rankings that were not used
for longest go first, and one that alone exceeds the bound is used and not kept.
"""

from bisect import insort
from collections.abc import Iterable, Iterator, Mapping, Sequence

from tessera.placement.card_demand import CardRequest, Kind, TypicalRequests
from tessera.placement.demand import StepBudget
from tessera.placement.room_rating import AlikeNodes, Rating, RoomIndex, RoomLoss, RoomRating, Shape, by_order
from tessera.placement.topology import LinkRatings

#: Most requests: different requests for whole cards and shares (cards, CPU, memory, models) for which the nodes are
#: kept ranked. More than teams use at a time; the longest unused is forgotten, and ranked again when needed.
RANKED_REQUESTS = 256
#: Most nodes in all these rankings together, nodes with equal room counting once; for each resource. 6 MB; 40 requests
#: on 5,000 different nodes, and as many requests as above on some hundred; ranked again otherwise.
RANKED_ROOMS = 200_000

#: Entries of rooms that no node has any more, which a ranking may have besides as many as there are rooms.
_STALE = 64
#: Steps that the rating of a shape costs, besides one for each room.
_STEPS_A_SHAPE = 4


class Rankings:
    """What was computed for one mix of requests.

    Args:
        typical: the mix.
        index: the rooms that nodes have; it changes.
        links: rates the links of nodes.
        most: entries that all kept rankings may have together.

    Attributes:
        typical: the mix.
        entries: the entries of all kept rankings.
    """

    def __init__(
        self, typical: TypicalRequests, index: RoomIndex, links: LinkRatings, most: int = int(RANKED_ROOMS)
    ) -> None:
        self.typical = typical
        self.entries = 0
        self._loss = RoomLoss(typical)
        self._links = links
        self._index = index
        self._most = most
        #: By rounded request, the last used at the end.
        self._kept: dict[CardRequest, Ranking] = {}
        #: The ranking in use, which is not among these, and its request.
        self._current: tuple[CardRequest, Ranking] | None = None

    def __len__(self) -> int:
        return len(self._kept)

    def of(self, request: CardRequest, work: StepBudget) -> "Ranking":
        """Returns the ranking of all rooms for a rounded request. It is kept, unless :meth:`note_refused` is called."""
        if self._current is None or self._current[0] != request:
            ranking = self._kept.pop(request, None)
            self.entries -= ranking.size if ranking is not None else 0
            self._put_back()
            self._current = (request, ranking or self._begin(request))
        ranking = self._current[1]
        ranking.refused = False
        news = self._index.news(ranking.read) if ranking.read is not None else None
        if news is None:
            ranking.clear()
            shapes = (shape for kind in ranking.orders for shape in self._index.shapes(kind))
            ranking.extend(((shape, shape.rooms) for shape in shapes), work)
        else:
            ranking.extend(((each.shape, (each,)) for each in news if each.nodes), work)
            if ranking.size > 2 * len(self._index) + _STALE:
                ranking.drop_stale()
            ranking.drop_first()
        ranking.read = self._index.added
        return ranking

    def note_refused(self) -> None:
        """Takes in that every node of the ranking in use refused the pod: a new one is not worth to be kept."""
        if self._current is not None:
            self._current[1].refused = True

    def _put_back(self) -> None:
        """Keeps the ranking in use within the bounds, if it shall be."""
        if self._current is None:
            return
        request, ranking = self._current
        self._current = None
        if (ranking.refused and not ranking.kept) or ranking.size > self._most:
            return
        ranking.kept = True
        self._kept[request] = ranking
        self.entries += ranking.size
        while self.entries > self._most or len(self._kept) > RANKED_REQUESTS:
            self.entries -= self._kept.pop(next(iter(self._kept))).size

    def rank(self, request: CardRequest, rooms: Iterable[AlikeNodes], work: StepBudget) -> "Ranking":
        """Returns a ranking of these rooms for a rounded request; it is not kept."""
        ranking = self._begin(request)
        shapes: dict[Shape, list[AlikeNodes]] = {}
        for each in rooms:
            if each.shape.kind in ranking.orders:
                shapes.setdefault(each.shape, []).append(each)
        ranking.extend(shapes.items(), work)
        return ranking

    def _begin(self, request: CardRequest) -> "Ranking":
        return Ranking(RoomRating(request, self._loss, self._links), request.kinds)


class Ranking:
    """Rooms, ranked for one request.

    Args:
        rating: rates rooms for it.
        kinds: the kinds of cards that suit.

    Attributes:
        rating: rates rooms for it.
        read: number of entries of the index that it has read; None before the first.
        size: number of its entries.
        orders: by kind, its entries in order.
        kept: True once it was kept.
        refused: True if no node has taken the last pod.
    """

    __slots__ = ("kept", "orders", "rating", "read", "refused", "size")

    def __init__(self, rating: RoomRating, kinds: Iterable[Kind]) -> None:
        self.rating = rating
        self.read: int | None = None
        self.size = 0
        self.orders: Mapping[Kind, RatedRooms] = {kind: RatedRooms() for kind in kinds}
        self.kept = self.refused = False

    def clear(self) -> None:
        """Drops all entries."""
        self.size = 0
        self.orders = {kind: RatedRooms() for kind in self.orders}

    def extend(self, rooms: Iterable[tuple[Shape, Sequence[AlikeNodes]]], work: StepBudget) -> None:
        """Rates rooms, by shape, and adds them; rooms of kinds that do not suit are left out."""
        for shape, found in rooms:
            order = self.orders.get(shape.kind)
            if order is None:
                continue
            work.spend(_STEPS_A_SHAPE + len(found))
            for rating, rated in self.rating.rate(shape, found):
                order.add(rating, rated)
                self.size += len(rated)

    def drop_stale(self) -> None:
        """Drops the entries of rooms that no node has any more."""
        self.size = sum(order.drop_stale() for order in self.orders.values())

    def drop_first(self) -> None:
        """Drops, of each kind, such entries before the first other one."""
        self.size -= sum(order.drop_first() for order in self.orders.values())


class RatedRooms:
    """Rooms of one kind by rating. Rooms with equal ratings are sorted when they are first looked at."""

    __slots__ = ("_ratings", "_rooms", "_unsorted")

    def __init__(self) -> None:
        #: The different ratings, the best first, and the rooms of each; no list is empty.
        self._ratings: list[Rating] = []
        self._rooms: dict[Rating, list[AlikeNodes]] = {}
        #: The ratings whose rooms are not sorted.
        self._unsorted: set[Rating] = set()

    def add(self, rating: Rating, more: list[AlikeNodes]) -> None:
        """Adds rooms in order; takes the list over."""
        rooms = self._rooms.get(rating)
        if rooms is None:
            self._rooms[rating] = more
            insort(self._ratings, rating)
        elif len(more) == 1 and rating not in self._unsorted:
            insort(rooms, more[0], key=by_order)
        else:
            rooms += more
            self._unsorted.add(rating)

    def best(self) -> Rating | None:
        """Returns the best rating; None without rooms. Stale rooms count until they are dropped."""
        return self._ratings[0] if self._ratings else None

    def walk(self) -> Iterator[tuple[Rating, Iterator[AlikeNodes]]]:
        """Yields the ratings, the best first, with the rooms that nodes have; nothing may change meanwhile."""
        for rating in self._ratings:
            yield rating, self._sorted(rating)

    def _sorted(self, rating: Rating) -> Iterator[AlikeNodes]:
        rooms = self._rooms[rating]
        if rating in self._unsorted:
            self._unsorted.discard(rating)
            rooms.sort(key=by_order)
        return (room for room in rooms if room.nodes)

    def drop_first(self) -> int:
        """Drops the rooms before the first one that a node has, and returns how many these were."""
        dropped = 0
        while self._ratings:
            rooms = self._rooms[self._ratings[0]]
            stale = next((number for number, room in enumerate(rooms) if room.nodes), len(rooms))
            del rooms[:stale]
            dropped += stale
            if rooms:
                break
            rating = self._ratings.pop(0)
            del self._rooms[rating]
            self._unsorted.discard(rating)
        return dropped

    def drop_stale(self) -> int:
        """Drops the rooms that no node has any more, and returns how many are left."""
        kept = {rating: [room for room in rooms if room.nodes] for rating, rooms in self._rooms.items()}
        self._rooms = {rating: rooms for rating, rooms in kept.items() if rooms}
        self._ratings = sorted(self._rooms)
        self._unsorted &= self._rooms.keys()
        return sum(map(len, self._rooms.values()))
