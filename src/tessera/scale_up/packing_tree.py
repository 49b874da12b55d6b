"""Searches all packings of requests onto a given number of equal nodes. Pure.

It fills node after node with the largest request that is left and as much beside it as fits, and goes back where the
rest cannot fit. It knows that from the amounts of the rest, from the prices of kinds
(:mod:`tessera.scale_up.patterns`), and from what it has tried before.
"""

from collections.abc import Iterator, Mapping, Sequence

from tessera.scale_up.pace import CONTENTS_A_STEP, KINDS_A_STEP, Pace
from tessera.scale_up.patterns import Counts, Relaxation, Vector, copies, minus

#: A content of one node: what is free there, and what is left to pack. None: other work should come first.
_Content = tuple[Vector, Counts] | None


class PackingTree:
    """The search for a packing of a given size.

    Args:
        capacity: the amounts of an empty node.
        requests: the requests with their numbers, large before small.
        prices: the prices of these requests, in the same order.
        whole: the price of the dearest content of a node; 0 if prices show nothing.
        pace: the steps.
    """

    def __init__(
        self, capacity: Vector, requests: Mapping[Vector, int], prices: Sequence[int], whole: int, pace: Pace
    ) -> None:
        self._capacity = capacity
        self._kinds, self._numbers = tuple(requests), tuple(requests.values())
        self._relaxed = Relaxation(prices, whole, ())
        self._pace = pace

    async def find(self, count: int) -> list[Vector] | None:
        """Returns what is free on each node of a packing; None if there is none, or the steps ran out."""
        #: Requests that were proved not to fit: by their numbers, the largest number of nodes that was too small.
        hopeless: dict[Counts, int] = {}
        #: For each filled node, and the one to fill next: the requests left before it, and the contents not yet tried.
        path: list[tuple[Counts, Iterator[_Content]]] = []
        free: list[Vector] = []
        left = self._numbers
        while any(left):
            nodes = count - len(free)
            if nodes > hopeless.get(left, 0) and self._least(left) <= nodes:
                path.append((left, self._fill(left)))
            elif free:
                free.pop()
            found: tuple[Vector, Counts] | None = None
            while path and found is None:
                try:
                    found = next(path[-1][1])
                except StopIteration:
                    failed, _ = path.pop()
                    hopeless[failed] = max(count - len(path), hopeless.get(failed, 0))
                    if free:
                        free.pop()
                else:
                    if found is None:
                        await self._pace.pause()
            if found is None or self._pace.is_spent:
                return None
            room, left = found
            free.append(room)
        return free

    def _least(self, left: Counts) -> int:
        """Returns a number of nodes below which what is left does not fit."""
        self._pace.spend(1 + len(left) // KINDS_A_STEP)
        least = self._relaxed.bound(left)
        for place, whole in enumerate(self._capacity):
            total = sum(request[place] * number for request, number in zip(self._kinds, left, strict=True))
            least = max(least, -(-total // whole) if total else 0)
        return least

    def _fill(self, left: Counts) -> Iterator[_Content]:
        """Yields contents of one node to which nothing can be added.

        The largest request that is left is on some node, so it is on this one.
        """
        first = next(place for place, number in enumerate(left) if number)
        #: Parts of contents: what is free, and what is left of the requests that were decided on.
        tried: list[tuple[Vector, Counts]] = [
            (minus(self._capacity, self._kinds[first], number), (*left[:first], left[first] - number))
            for number in range(1, min(left[first], copies(self._capacity, self._kinds[first])) + 1)
        ]
        while tried and not self._pace.is_spent:
            if self._pace.is_due:
                yield None
            room, taken = tried.pop()
            begin = place = len(taken)
            while place < len(left) and not (left[place] and copies(room, self._kinds[place])):
                place += 1
            self._pace.spend(1 + (place - begin) // KINDS_A_STEP)
            taken = (*taken, *left[begin:place])
            if place < len(left):
                request = self._kinds[place]
                most = min(left[place], copies(room, request))
                self._pace.spend(most // CONTENTS_A_STEP)
                tried += [(minus(room, request, each), (*taken, left[place] - each)) for each in range(most + 1)]
            elif not any(number and copies(room, self._kinds[each]) for each, number in enumerate(taken)):
                yield room, taken
