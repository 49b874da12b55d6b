"""Chooses whole cards of a node that are close together: scores of pairs, and the best set for a request.

The score of a pair of cards shows how fast they communicate: points for the way through PCIe plus 100 for every NVLink
between them (the points of NVIDIA's go-gpuallocator, so that its published results for several cards hold here). Two
cards on an NVSwitch have as many links with each other as the card with fewer links has.

The best set is not the set with the highest score: taking that one may leave poor sets for later requests. The search
divides all available cards into sets of the requested size and a rest. The division with the highest total counts, and
of its sets the best one that holds every required card. Ties go to the first in card order.

A single card is the one with the fewest points to the other available cards, so joined groups stay whole for requests
to come. (go-gpuallocator takes the first one, whatever that breaks.)

The search is exact for up to :data:`EXACT_CARDS` cards. The value of a division is the sum of the best points that each
card could have, less the loss of its sets against that. So the search tries sets by loss and ends a branch when its
loss reaches the best known one; it also compares two ways to the same remaining cards by loss (``bench/preferred.py``
has the times). Beyond that size the search grows sets card by card and improves them by exchange.

This module does not know how links are read, nor shares or MIG devices. An unknown card scores nothing with any other,
so a lost or new card disturbs no answer.

A node's rating for whole cards, by how its free cards are joined:

- For several cards: the points of the set that the node's agent will prefer (above). More is better.
- For one card: the points of the fastest NVLink between the card that the agent will prefer and another free one, which
  a later pod with two cards then cannot have. Less is better. A node where all pairs are alike loses nothing; the way
  through PCIe does not count here, since it is not worth a fuller node.

The cards of pods that are on their way to the node are still free for its agent. They count as one request, by which
the agent chooses. If fewer cards are listed as free than are free by count, the rest counts as unjoined.

The search is exact for up to :data:`EXACT` free cards, grown beyond that: the controller rates many nodes in a
decision. Alike nodes in the same state share a rating.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import IntEnum
from itertools import combinations
from operator import add
from typing import Self

import msgspec

#: Requests over more cards than this use growth and exchange; no machine of NVIDIA's has more in one host.
EXACT_CARDS = 16
#: Points of one NVLink (go-gpuallocator, ``SingleNVLINKLink``).
NVLINK_POINTS = 100
#: A number above any loss.
_NEVER = 1 << 60


class PciPath(IntEnum):
    """The way between two cards through PCIe, by go-gpuallocator's points; names as ``nvidia-smi topo -m`` has them."""

    UNKNOWN = 0
    #: Across the link between CPUs.
    SYS = 10
    #: Across host bridges of one NUMA node.
    NODE = 20
    #: Across one host bridge.
    PHB = 30
    #: Across several switches.
    PXB = 40
    #: Across one switch.
    PIX = 50
    #: On one board.
    BOARD = 60


class CardLink(msgspec.Struct, frozen=True):
    """The connection of two cards.

    Attributes:
        path: the way through PCIe.
        nvlinks: direct NVLinks between the two.
    """

    path: PciPath = PciPath.UNKNOWN
    nvlinks: int = 0


class Topology:
    """The cards of a node and the connection of each pair.

    Args:
        cards: every card, in the order that breaks ties (by index).
        pairs: the connection of two cards, in either order; of a pair in both orders the better value counts, since a
            link that one end no longer reports still exists.
        switch_links: NVLinks of a card that end at an NVSwitch.

    Raises:
        ValueError: a card is listed twice.
    """

    def __init__(
        self,
        cards: Sequence[str],
        pairs: Mapping[tuple[str, str], CardLink],
        *,
        switch_links: Mapping[str, int] | None = None,
    ) -> None:
        if len(set(cards)) != len(cards):
            raise ValueError(f"topology: a card stands twice in {', '.join(cards)}; every card has one place")
        self.cards = tuple(cards)
        self._order = {card: number for number, card in enumerate(cards)}
        links = switch_links or {}
        self._scores = {
            (one, other): _score(pairs, links, one, other) for one in cards for other in cards if one != other
        }

    @classmethod
    def without_links(cls, cards: Sequence[str]) -> Self:
        """Returns cards of which only the order is known."""
        return cls(cards, {})

    @classmethod
    def of_points(cls, points: Mapping[tuple[str, str], int], cards: Sequence[str]) -> Self:
        """Returns cards whose pairs have these points."""
        found = cls.without_links(cards)
        for (one, other), each in points.items():
            found._scores[one, other] = found._scores[other, one] = each  # noqa: SLF001 - of this class
        return found

    def score(self, one: str, other: str) -> int:
        """Returns the points of a pair; 0 for an unknown card."""
        return self._scores.get((one, other), 0)

    def total(self, cards: Iterable[str]) -> int:
        """Points of a set: the sum over its pairs."""
        return sum(self.score(one, other) for one, other in combinations(cards, 2))

    def preferred_cards(
        self, available: Collection[str], must: Collection[str], size: int, *, exact_cards: int = EXACT_CARDS
    ) -> tuple[str, ...]:
        """Returns the best ``size`` of the available cards.

        Args:
            available: cards to choose from, ``must`` included.
            must: cards that the set must contain.
            size: the number of cards.
            exact_cards: the most available cards for which the search is exact.

        Returns:
            The cards in card order; empty if there is no such set: fewer than ``size`` available, more than ``size``
            required, or a required one that is not available.
        """
        pool = sorted(set(available), key=lambda card: (self._order.get(card, len(self.cards)), card))
        wanted = set(must)
        if size <= 0 or size > len(pool) or len(wanted) > size or not wanted <= set(pool):
            return ()
        if size in (len(pool), len(wanted)):
            return tuple(card for card in pool if size == len(pool) or card in wanted)
        if size == 1:
            return (min(pool, key=lambda card: sum(self.score(card, other) for other in pool)),)
        weights = [[self.score(one, other) for other in pool] for one in pool]
        needed = [number for number, card in enumerate(pool) if card in wanted]
        if len(pool) <= exact_cards:
            chosen = _Division(weights, size, needed).best_set()
        else:
            chosen = sorted(_grow_set(weights, size, needed))
        return tuple(pool[number] for number in chosen)


def _score(pairs: Mapping[tuple[str, str], CardLink], switch_links: Mapping[str, int], one: str, other: str) -> int:
    links = [pairs[key] for key in ((one, other), (other, one)) if key in pairs]
    path = max((pair.path for pair in links), default=PciPath.UNKNOWN)
    direct = max((pair.nvlinks for pair in links), default=0)
    switched = min(switch_links.get(one, 0), switch_links.get(other, 0))
    return int(path) + NVLINK_POINTS * max(direct, switched)


class _Division:
    """Divides cards into sets of one size and a rest.

    A set of cards is an ``int``. The first card has the highest bit, so of two sets of one size the one that is first
    in card order is the greater number.

    Args:
        weights: points of every pair.
        size: cards in a set.
        needed: cards that must be together in one set, by number.
    """

    def __init__(self, weights: list[list[int]], size: int, needed: Collection[int]) -> None:
        self._count = len(weights)
        self._size = size
        self._rest = self._count % size
        self._needed = sum(self._bit(number) for number in needed)
        self._best = 0
        self._weights = weights
        self._losses: dict[int, int] = {}
        # By the first card of a set: its loss, which is twice the difference between its cards' best points and theirs
        # here, and the negative set; ascending, so the least loss is first and ties are in card order.
        self._sets: list[list[tuple[int, int]]] = []
        self._least = {0: 0}
        most = [sum(sorted(row)[-(size - 1) :]) if size > 1 else 0 for row in weights]
        for first in range(self._count):
            self._sets.append([])
            for length in {size, self._rest} - {0}:
                self._add(first, length, weights, most)
        for sets in self._sets:
            sets.sort()

    def _bit(self, number: int) -> int:
        return 1 << (self._count - 1 - number)

    def _add(self, first: int, length: int, weights: list[list[int]], most: list[int]) -> None:
        """Adds every set of that length whose first card is ``first``."""
        sets, losses, needed = self._sets[first], self._losses, self._needed
        may_hold = length == self._size
        least = self._least.get(length, 1 << 60)
        bits = [self._bit(number) for number in range(self._count)]

        def extend(cards: int, after: int, missing: int, loss: int, gains: list[int]) -> None:
            nonlocal least
            if missing:
                for number in range(after, self._count - missing + 1):
                    added = gains if missing == 1 else list(map(add, gains, weights[number]))
                    more = most[number] - 2 * gains[number]
                    extend(cards | bits[number], number + 1, missing - 1, loss + more, added)
                return
            held = cards & needed
            if held and (held != needed or not may_hold):
                return
            least = min(least, loss)
            losses[cards] = loss
            sets.append((loss, -cards))

        extend(bits[first], first + 1, length - 1, most[first], weights[first])
        self._least[length] = least

    def best_set(self) -> list[int]:
        """Returns the best set of the best division, by number."""
        full = (1 << self._count) - 1
        self._best = 1 + sum(sets[-1][0] for sets in self._sets if sets)
        self._search(full, 0, {})
        division = self._first_division(full, 0, {})
        fitting = [cards for cards in division if cards.bit_count() == self._size and not self._needed & ~cards]
        return max(map(self._members, fitting), key=lambda members: _points(self._weights, members))

    def _members(self, cards: int) -> list[int]:
        return [number for number in range(self._count) if cards & self._bit(number)]

    def _search(self, left: int, loss: int, reached: dict[int, int]) -> None:
        """Lowers the best loss to that of the best division. ``reached`` has the least loss of a way to ``left``."""
        if left.bit_count() <= self._size:
            self._best = min(self._best, loss + self._losses.get(left, _NEVER))
            return
        after_set, after_either, after_rest = self._limits(left)
        for lost, negative in self._sets[self._count - left.bit_length()]:
            total = loss + lost
            if total + after_either >= self._best:
                return
            if -negative & ~left:
                continue
            after = left + negative
            still = after_set if (-negative).bit_count() == self._size else after_rest
            if total + still < self._best and total < reached.get(after, self._best):
                reached[after] = total
                self._search(after, total, reached)

    def _limits(self, left: int) -> tuple[int, int, int]:
        """The least loss of the other cards after a set, after a set or the rest, and after the rest was taken."""
        sets, rest = divmod(left.bit_count(), self._size)
        least, least_rest = self._least.get(self._size, 0), self._least.get(self._rest, 0)
        after_set = (sets - 1) * least + (least_rest if rest else 0)
        after_rest = sets * least if rest or not self._rest else _NEVER
        return after_set, min(after_set, after_rest), after_rest

    def _first_division(self, left: int, loss: int, failed: dict[int, int]) -> list[int]:
        """Returns the first division in card order that has the best loss; ``failed`` has losses without a division."""
        if left.bit_count() <= self._size:
            return [left] if loss + self._losses.get(left, _NEVER) == self._best else []
        after_set, _, after_rest = self._limits(left)
        for negative, lost in sorted(
            (negative, lost) for lost, negative in self._sets[self._count - left.bit_length()]
        ):
            total = loss + lost
            still = after_set if (-negative).bit_count() == self._size else after_rest
            if total + still > self._best or -negative & ~left:
                continue
            after = left + negative
            if total < failed.get(after, _NEVER):
                if others := self._first_division(after, total, failed):
                    return [-negative, *others]
                failed[after] = total
        return []


def _grow_set(weights: list[list[int]], size: int, fixed: list[int]) -> list[int]:
    """Returns a good set of many cards: grows one from each possible first card, then exchanges cards."""
    starts = [fixed] if fixed else [[first] for first in range(len(weights))]
    candidates = [_improve_set(weights, _grow(weights, size, start), fixed) for start in starts]
    return max(candidates, key=lambda members: _points(weights, members))


def _grow(weights: list[list[int]], size: int, members: list[int]) -> list[int]:
    grown = list(members)
    while len(grown) < size:
        others = (number for number in range(len(weights)) if number not in grown)
        grown.append(max(others, key=lambda number: sum(weights[number][member] for member in grown)))
    return grown


def _improve_set(weights: list[list[int]], members: list[int], fixed: list[int]) -> list[int]:
    """Exchanges one card at a time while that adds points."""
    while True:
        gain, out, into = max(
            (
                (_gain(weights, members, out, into), out, into)
                for out in members
                if out not in fixed
                for into in range(len(weights))
                if into not in members
            ),
            default=(0, 0, 0),
        )
        if gain <= 0:
            return members
        members = [*(member for member in members if member != out), into]


def _gain(weights: list[list[int]], members: list[int], out: int, into: int) -> int:
    return sum(weights[into][member] - weights[out][member] for member in members if member != out)


def _points(weights: list[list[int]], members: list[int]) -> int:
    return sum(weights[one][other] for one, other in combinations(members, 2))


#: The most free cards for which the search is exact: the usual largest machine.
EXACT = 8
#: Ratings that are kept: all sets of free cards of several models with eight, by all sizes of requests.
_KEPT = 16_384

#: Cards, points of the pairs, free cards; see :class:`tessera.api.nodes.node_cards.CardLinks`.
Joined = tuple[int, tuple[int, ...], tuple[int, ...] | None]


class LinkRatings:
    """Ratings of nodes; keeps those that were asked for."""

    def __init__(self) -> None:
        #: By links, number of free cards and size of the request.
        self._known: dict[tuple[Joined, int, int], int] = {}

    def points(self, joined: Joined, free: int, size: int) -> int:
        """Returns the points of the cards that a request gets.

        Args:
            joined: how the cards of the node are joined.
            free: the number of cards that no pod has, pods on their way included.
            size: the number of cards, two or more.
        """
        return self._look_up(joined, free, size)

    def loss(self, joined: Joined, free: int) -> int:
        """Returns the points that are lost for a later pair if a pod takes one card.

        Args:
            joined: how the cards of the node are joined.
            free: the number of cards that no pod has, pods on their way included.
        """
        return self._look_up(joined, free, 1)

    def _look_up(self, joined: Joined, free: int, size: int) -> int:
        key = (joined, free, size)
        if key not in self._known:
            if len(self._known) >= _KEPT:
                self._known.clear()
            self._known[key] = _rate(*joined, count=free, size=size)
        return self._known[key]


def _rate(cards: int, points: Sequence[int], listed: Sequence[int] | None, *, count: int, size: int) -> int:
    if len(points) == 1:
        return points[0] * size * (size - 1) // 2
    if listed is None:
        return 0
    names = [f"{number:02}" for number in range(cards)]
    topology = Topology.of_points(dict(zip(combinations(names, 2), points, strict=True)), names)
    free = {names[number] for number in listed}
    coming = len(free) - count
    if coming > 0:
        free -= set(topology.preferred_cards(free, (), coming, exact_cards=EXACT))
    chosen = topology.preferred_cards(free, (), min(size, len(free)), exact_cards=EXACT)
    if size > 1:
        return topology.total(chosen)
    links = [topology.score(one, other) for one in chosen for other in free - {one}]
    return max(links, default=0) // NVLINK_POINTS * NVLINK_POINTS
