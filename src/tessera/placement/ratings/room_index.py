"""The different rooms that nodes have, in order, and which of them are new.

Nodes with equal room are one entry, :class:`AlikeNodes`, as long as there are any. Entries that differ in CPU and
memory alone share a :class:`Shape`, since most of a rating depends on the rest.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping
from itertools import islice
from operator import attrgetter

from tessera.placement.ratings.card_demand import FreeCards, Kind, NodeRoom
from tessera.placement.topology import Joined

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
