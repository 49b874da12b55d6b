"""Requests for whole cards and shares, and the free cards of a node that they are compared with.

A card has :data:`CARD` thousandths; a share of a card that is divided beforehand is a small card of its own. The free
cards of a node are counted by what is free of them, since cards with equally much are alike.
"""

from typing import NamedTuple

from tessera.placement.link_ratings import Joined

#: Thousandths of a whole card.
CARD = 1000
#: The cards with something free: free thousandths of a card, and the number of such cards; least free first.
FreeCards = tuple[tuple[int, int], ...]
#: Cards of one model and one resource, by name.
Kind = str

#: Units in which nodes and requests are compared: thousandths of a CPU, and MiB of memory.
CPU_STEP, MEMORY_STEP = 1_000, 4_096


class CardRequest(NamedTuple):
    """What a pod requests.

    Attributes:
        cpu: thousandths of a CPU.
        memory: MiB.
        cards: number of cards; 0 for a pod without.
        part: thousandths of each card.
        kinds: the kinds of cards that suit the pod, each once.
        pinned: True if the cluster has cards of the same resource that do not suit.
    """

    cpu: int
    memory: int
    cards: int
    part: int
    kinds: tuple[Kind, ...]
    pinned: bool

    @property
    def asked(self) -> int:
        """Thousandths of cards that the pod requests."""
        return self.cards * self.part

    @property
    def rounded(self) -> "CardRequest":
        """The request in whole steps of CPU and memory, rounded up."""
        return self._replace(
            cpu=-(-self.cpu // CPU_STEP) * CPU_STEP, memory=-(-self.memory // MEMORY_STEP) * MEMORY_STEP
        )


class NodeRoom(NamedTuple):
    """What is free on a node, of cards of one kind.

    Attributes:
        kind: the kind of its cards.
        cards: the free cards.
        cpu: thousandths of a CPU.
        memory: MiB.
        unused: True if no card is in use.
        joined: how the node's whole cards are joined; None if not known.
    """

    kind: Kind
    cards: FreeCards
    cpu: int
    memory: int
    unused: bool
    joined: Joined | None = None

    @property
    def rounded(self) -> "NodeRoom":
        """The room in whole steps of CPU and memory, rounded down."""
        return self._replace(cpu=self.cpu // CPU_STEP * CPU_STEP, memory=self.memory // MEMORY_STEP * MEMORY_STEP)


def free_cards(cards: FreeCards) -> int:
    """Returns the number of cards with something free."""
    return sum(count for _, count in cards)


def free_parts(cards: FreeCards) -> int:
    """Returns the free thousandths of all cards together."""
    return sum(free * count for free, count in cards)


def usable_parts(cards: FreeCards, request: CardRequest) -> int:
    """Returns the free thousandths of the cards that a request could use; 0 if it finds too few cards."""
    found = parts = 0
    for free, count in cards:
        if free >= request.part:
            found += count
            parts += free * count
    return parts if found >= request.cards else 0


def list_uses(cards: FreeCards, request: CardRequest) -> list[tuple[int, FreeCards]]:
    """Returns the ways to take the cards of a request: what is free of the first card, and the cards afterwards.

    A pod of several cards takes the least free ones that suit it.
    """
    if not request.cards:
        return [(0, cards)]
    if request.cards == 1:
        return [(free, _take(cards, {free: 1}, request.part)) for free, _ in cards if free >= request.part]
    taken: dict[int, int] = {}
    left = request.cards
    for free, count in cards:
        if free >= request.part and left:
            taken[free] = min(left, count)
            left -= taken[free]
    return [] if left else [(next(iter(taken)), _take(cards, taken, request.part))]


def _take(cards: FreeCards, taken: dict[int, int], part: int) -> FreeCards:
    counts = dict(cards)
    for free, count in taken.items():
        counts[free] -= count
        if free > part:
            counts[free - part] = counts.get(free - part, 0) + count
    return tuple(sorted((free, count) for free, count in counts.items() if count))
