"""Rates rooms for one request; :mod:`tessera.placement.node_ratings` has the rule.

Links, uses of cards and losses are those of a shape, so they are looked up once for all its rooms. Rooms where neither
CPU nor memory lacks, before or after, have equal points. What is left to compute for another room costs some
microseconds.

The loss of a node: thousandths of its free cards that requests of the known mix could not use.

- FGD's fragmentation (USENIX ATC '23): for each typical request the free parts of cards that it could not use, by its
  share of the requests.
- Besides, the free cards for which CPU or memory lack: a free card counts in full beside :data:`AMOUNT_A_CARD` times
  what pods request beside one on average. So a pod with much CPU goes where CPU is plentiful, and one without leaves
  such nodes to others. ``bench/openb.py`` measures the rule on traces.

A :class:`RoomIndex` has the different rooms that nodes have, in order, and knows which of them are new.

Nodes with equal room are one entry, :class:`AlikeNodes`, as long as there are any. Entries that differ in CPU and
memory alone share a :class:`Shape`, since most of a rating depends on the rest.
"""

import math
import sys
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from operator import attrgetter
from typing import NamedTuple

from tessera.placement.card_demand import (
    CARD,
    CPU_STEP,
    MEMORY_STEP,
    CardRequest,
    FreeCards,
    Kind,
    NodeRoom,
    TypicalRequests,
    free_cards,
    free_parts,
    list_uses,
    usable_parts,
)
from tessera.placement.state_costs import CARD_STATES
from tessera.placement.topology import Joined, LinkRatings

#: News that are remembered besides as many as there are rooms.
_NEWS = 1_024


class Shape:
    """Rooms that are equal but for CPU and memory.

    Attributes:
        kind: the kind of the cards.
        cards: the free cards.
        unused: True if no card is in use.
        joined: how the node's whole cards are joined; None if not known.
        label: the text of ``joined``, to order by.
        rooms: the entries, by CPU and memory ascending.
    """

    __slots__ = ("cards", "joined", "kind", "label", "rooms", "unused")

    def __init__(self, room: NodeRoom) -> None:
        self.kind = room.kind
        self.cards: FreeCards = room.cards
        self.unused = room.unused
        self.joined: Joined | None = room.joined
        self.label = str(room.joined)
        self.rooms: list[AlikeNodes] = []


class AlikeNodes:
    """Nodes with one rounded room.

    Attributes:
        shape: what the room is besides CPU and memory.
        cpu: thousandths of a CPU.
        memory: MiB.
        nodes: the nodes; once it is empty it stays so, and the entry is in no index any more.
        order: tells the room from others of its kind, and orders them.
    """

    __slots__ = ("cpu", "memory", "nodes", "order", "shape")

    def __init__(self, room: NodeRoom, shape: Shape, nodes: Mapping[str, None]) -> None:
        self.shape = shape
        self.cpu = room.cpu
        self.memory = room.memory
        self.nodes = nodes
        self.order = (shape.cards, room.cpu, room.memory, shape.unused, shape.label)


#: The key by which entries of one kind are ordered.
by_order = attrgetter("order")


class RoomIndex:
    """The entries of all rooms, by kind and shape.

    Args:
        alike: by rounded room, the nodes that have it.

    Attributes:
        added: number of entries that were ever added.
    """

    def __init__(self, alike: Mapping[NodeRoom, Mapping[str, None]]) -> None:
        self.added = 0
        self._entries: dict[NodeRoom, AlikeNodes] = {}
        #: By kind, and by the room without CPU and memory; no value and no inner one is empty.
        self._shapes: dict[Kind, dict[NodeRoom, Shape]] = {}
        #: The entries that were added last, in order.
        self._news: list[AlikeNodes] = []
        for room, nodes in alike.items():
            self.add(room, nodes)

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, room: NodeRoom, nodes: Mapping[str, None]) -> None:
        """Adds a rounded room that no node had; ``nodes`` has those that have it from now on."""
        shapes = self._shapes.setdefault(room.kind, {})
        key = _without_amounts(room)
        shape = shapes.get(key)
        if shape is None:
            shape = shapes[key] = Shape(room)
        entry = self._entries[room] = AlikeNodes(room, shape, nodes)
        insort(shape.rooms, entry, key=by_order)
        if len(self._news) >= 2 * (_NEWS + len(self._entries)):
            del self._news[: len(self._news) // 2]
        self._news.append(entry)
        self.added += 1

    def remove(self, room: NodeRoom) -> None:
        """Removes a rounded room that no node has any more."""
        entry = self._entries.pop(room)
        shape = entry.shape
        del shape.rooms[bisect_left(shape.rooms, entry.order, key=by_order)]
        if not shape.rooms:
            shapes = self._shapes[room.kind]
            del shapes[_without_amounts(room)]
            if not shapes:
                del self._shapes[room.kind]

    def entry(self, room: NodeRoom) -> AlikeNodes:
        """Returns the entry of a rounded room that a node has."""
        return self._entries[room]

    def shapes(self, kind: Kind) -> Iterator[Shape]:
        """Yields the shapes of a kind."""
        yield from self._shapes.get(kind, {}).values()

    def news(self, read: int) -> Iterator[AlikeNodes] | None:
        """Returns the entries that were added after the first ``read`` ones; None if that is not known any more."""
        missed = self.added - read
        return islice(self._news, len(self._news) - missed, None) if missed <= len(self._news) else None


def _without_amounts(room: NodeRoom) -> NodeRoom:
    return room._replace(cpu=0, memory=0)


#: CPU, or memory, that a free card needs to count in full, in multiples of what pods ask for beside one on average.
AMOUNT_A_CARD = 1.3


class RoomLoss:
    """Rates rooms for one mix of requests.

    Args:
        typical: the mix.
    """

    def __init__(self, typical: TypicalRequests) -> None:
        self._typical = typical
        self._steps = sorted({request.cpu for request, _ in typical.shares})
        #: By kind, the typical requests that it suits, and the share of the others.
        self._suited: dict[Kind, tuple[list[tuple[CardRequest, float]], float]] = {}
        #: Remembered losses by kind and free cards.
        self._losses: dict[tuple[Kind, FreeCards], CardsLoss] = {}

    def of(self, kind: Kind, cards: FreeCards) -> "CardsLoss":
        """Returns the loss of rooms with these free cards."""
        key = (kind, cards)
        found = self._losses.get(key)
        if found is None:
            if len(self._losses) >= CARD_STATES:
                self._losses.clear()
            suited, unsuited = self._requests(kind)
            found = self._losses[key] = CardsLoss(cards, suited, unsuited, self._steps, self._typical)
        return found

    def _requests(self, kind: Kind) -> tuple[list[tuple[CardRequest, float]], float]:
        found = self._suited.get(kind)
        if found is None:
            suited = [one for one in self._typical.shares if kind in one[0].kinds]
            unsuited = sum(share for _, share in self._typical.shares) - sum(share for _, share in suited)
            found = self._suited[kind] = (suited, unsuited)
        return found


class CardsLoss:
    """The loss of rooms with certain free cards, by their CPU and memory.

    Args:
        cards: the free cards.
        suited: the typical requests that their kind suits, with their shares.
        unsuited: the share of the other requests.
        steps: the amounts of CPU in typical requests, ascending.
        typical: the mix.

    Attributes:
        cpu: thousandths of a CPU from which on the loss is the least.
        memory: MiB, the same.
    """

    __slots__ = (
        "_cards",
        "_cpu",
        "_cpu_a_part",
        "_fragments",
        "_free",
        "_memory_a_part",
        "_steps",
        "_suited",
        "_unsuited",
        "cpu",
        "memory",
    )

    def __init__(
        self,
        cards: FreeCards,
        suited: list[tuple[CardRequest, float]],
        unsuited: float,
        steps: list[int],
        typical: TypicalRequests,
    ) -> None:
        self._cards = cards
        self._suited = suited
        self._unsuited = unsuited
        self._steps = steps
        self._free = free_parts(cards)
        #: By step of CPU, the fragmentation; None where nobody has asked.
        self._fragments: list[float | None] = [None] * (len(steps) + 1)
        self._cpu_a_part = AMOUNT_A_CARD * typical.cpu_a_part
        self._memory_a_part = AMOUNT_A_CARD * typical.memory_a_part
        #: The CPU from which on no card is stranded.
        self._cpu = self._free * self._cpu_a_part
        self.cpu: float = max(steps[-1] if steps else 0, self._cpu)
        self.memory: float = self._free * self._memory_a_part

    @property
    def least(self) -> float:
        """Returns the loss of rooms where neither CPU nor memory lacks."""
        return self(sys.maxsize, sys.maxsize)

    def __call__(self, cpu: int, memory: int) -> float:
        """Returns the loss of a room with so much CPU (thousandths) and memory (MiB); less is better."""
        step = bisect_right(self._steps, cpu)
        fragment = self._fragments[step]
        if fragment is None:
            fragment = self._fragments[step] = self._fragment(step)
        lost = self._free - cpu / self._cpu_a_part if cpu < self._cpu else 0.0
        if memory < self.memory:
            for_memory = self._free - memory / self._memory_a_part
            if for_memory > lost:  # noqa: PLR1730 - max() costs as much as all the rest
                lost = for_memory
        return fragment + lost

    def _fragment(self, step: int) -> float:
        most_cpu = self._steps[step - 1] if step else -1
        lost = self._unsuited * self._free
        for request, share in self._suited:
            usable = usable_parts(self._cards, request) if request.cpu <= most_cpu else 0
            lost += share * (self._free - usable)
        return lost


#: Points that an empty node of so many cards is worse for a pod of one card.
OPENING, SEVERAL_CARDS = 10, 4
#: Kinds with free cards for which the change by a request is remembered: those of some machines of eight cards.
_CHANGES = 64


class Rating(NamedTuple):
    """A rating; the least is the best.

    Attributes:
        links: negated points of the links between the cards that the pod gets, if it wants several.
        points: negated points.
        broken: points of the link that the pod breaks, if it wants one card.
        free: free thousandths of all cards.
    """

    links: int
    points: float
    broken: int
    free: int


class _Change(NamedTuple):
    """What a pod does to certain free cards.

    Attributes:
        before: the loss of rooms with these cards.
        afters: the losses afterwards, by use of the cards; there is one at least.
        cpu: thousandths of a CPU from which on a room has the points below, if the memory suffices too.
        memory: MiB, the same.
        points: the points of rooms where neither CPU nor memory lacks, before or after.
        free: free thousandths of all cards.
        opens: True if it is a pod of one card that would begin a node of several, were that empty.
    """

    before: CardsLoss
    afters: Sequence[CardsLoss]
    cpu: float
    memory: float
    points: int
    free: int
    opens: bool


class RoomRating:
    """Rates rooms for one request and one mix of requests.

    Args:
        request: the rounded request.
        loss: rates rooms for the mix.
        links: rates the links of nodes.
    """

    def __init__(self, request: CardRequest, loss: RoomLoss, links: LinkRatings) -> None:
        self._request = request
        self._loss = loss
        self._links = links
        #: By kind and free cards, what the pod does to them.
        self._changes: dict[tuple[Kind, FreeCards], _Change | None] = {}

    def rate(self, shape: Shape, rooms: Sequence[AlikeNodes]) -> Iterator[tuple[Rating, list[AlikeNodes]]]:
        """Yields the ratings of rooms of a shape, each with its rooms in order; none of those that are too small."""
        change = self._change(shape)
        if change is None:
            return
        cpu, memory = self._request.cpu, self._request.memory
        found: dict[int, list[AlikeNodes]] = {}
        for room in rooms:
            if room.cpu >= change.cpu and room.memory >= change.memory:
                points = change.points
            elif cpu - room.cpu < 2 * CPU_STEP and memory - room.memory < 2 * MEMORY_STEP:  # both were rounded
                points = _points(self._gain(room, change.before, change.afters))
            else:
                continue
            if points in found:
                found[points].append(room)
            else:
                found[points] = [room]
        opening = OPENING if shape.unused and change.opens else 0
        links, broken = self._rate_links(shape) if found else (0, 0)
        for points, rated in found.items():
            yield Rating(links, opening - points, broken, change.free), rated

    def _change(self, shape: Shape) -> "_Change | None":
        """Returns what the pod does to the cards of a shape; None if they do not suffice."""
        key = (shape.kind, shape.cards)
        if key not in self._changes:
            if len(self._changes) >= _CHANGES:
                self._changes.clear()
            self._changes[key] = self._find_change(shape)
        return self._changes[key]

    def _find_change(self, shape: Shape) -> "_Change | None":
        request = self._request
        afters = [self._loss.of(shape.kind, after) for _, after in list_uses(shape.cards, request)]
        if not afters:
            return None
        before = self._loss.of(shape.kind, shape.cards)
        return _Change(
            before,
            afters,
            request.cpu + max(before.cpu, *(each.cpu for each in afters)),
            request.memory + max(before.memory, *(each.memory for each in afters)),
            _points(before.least - min(each.least for each in afters)),
            free_parts(shape.cards),
            request.cards <= 1 and free_cards(shape.cards) >= SEVERAL_CARDS,
        )

    def taken(self, room: AlikeNodes) -> int:
        """Returns what is free of the card that the pod takes, of several the first."""
        uses = list_uses(room.shape.cards, self._request)
        if len(uses) == 1:
            return uses[0][0]
        before = self._loss.of(room.shape.kind, room.shape.cards)
        afters = ((taken, self._loss.of(room.shape.kind, after)) for taken, after in uses)
        return -max((_points(self._gain(room, before, [after])), -taken) for taken, after in afters)[1]

    def _gain(self, room: AlikeNodes, before: CardsLoss, afters: Sequence[CardsLoss]) -> float:
        """Returns the loss that the node loses by the best of several uses; mostly negative."""
        cpu, memory = room.cpu - self._request.cpu, room.memory - self._request.memory
        if cpu < 0 or memory < 0:  # by less than both were rounded
            cpu, memory = max(0, cpu), max(0, memory)
        lost = afters[0](cpu, memory)
        for after in afters[1:]:
            lost = min(lost, after(cpu, memory))
        return before(room.cpu, room.memory) - lost

    def _rate_links(self, shape: Shape) -> tuple[int, int]:
        """Returns the negated points of the links that the pod gets, and those of the link that it breaks."""
        cards, count = self._request.cards, free_cards(shape.cards)
        if shape.joined is None or not cards:
            return 0, 0
        if cards > 1:
            return -self._links.points(shape.joined, count, cards), 0
        return 0, self._links.loss(shape.joined, count)


def _points(gain: float) -> int:
    return int(100 / (1 + math.exp(-gain / CARD)))
