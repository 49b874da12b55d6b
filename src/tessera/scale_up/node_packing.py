"""Packs requests for several amounts onto the fewest equal nodes. Pure.

Cards, CPU and memory of a new node are amounts that its pods share, so this is vector bin packing. It has no fast exact
answer. So:

1. Requests are put on the first node with room, large before small, by several meanings of "large".
2. No packing needs fewer nodes than one amount alone does (:func:`least_count`), or than nodes that may be divided
   (:mod:`tessera.scale_up.patterns`). A packing of that size is the best.
3. The patterns of divided nodes are used as often as whole numbers allow. So many alike requests are packed at once.
4. What they leave is packed by 1, and by :class:`PackingTree`, which tries each number of
   nodes. The last try is that tree for all requests. It knows the best packing unless its steps run out.

The tree searches all packings of requests onto a given number of nodes. It fills node after node with the largest
request that is left and as much beside it as fits, and goes back where the rest cannot fit. It knows that from the
amounts of the rest, from the prices of kinds (:mod:`tessera.scale_up.patterns`), and from what it has tried before.
"""

from collections.abc import Iterator, Mapping, Sequence

from tessera.placement.demand import StepBudget
from tessera.scale_up.patterns import (
    CONTENTS_A_STEP,
    KINDS_A_STEP,
    Counts,
    Pace,
    Relaxation,
    Vector,
    copies,
    minus,
    relax,
)

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


#: Different requests up to which patterns and the tree are used.
_SEARCHED_KINDS = 64
#: Shares of the steps that are left, for the relaxation of divided nodes, and for the tree of what patterns leave.
_PATTERN_SHARE, _REST_SHARE = 0.5, 0.3
#: Nodes that one step asks: a check that finds no room costs little.
CHECKS_A_STEP = 4

_Requests = Mapping[Vector, int]


def least_count(capacity: Vector, requests: _Requests) -> int:
    """Returns a number of nodes below which the requests do not fit, however they are packed.

    Of each amount they need the sum; and two of them that take more than half of it are never on one node.
    """
    least = 0
    for place, whole in enumerate(capacity):
        total = sum(request[place] * number for request, number in requests.items())
        large = sum(number for request, number in requests.items() if 2 * request[place] > whole)
        least = max(least, -(-total // whole) if total else 0, large)
    return least


def add(free: list[Vector], request: Vector) -> bool:
    """Puts a request on the first node with room; returns False if none has it."""
    for place, room in enumerate(free):
        if copies(room, request):
            free[place] = minus(room, request, 1)
            return True
    return False


async def pack(capacity: Vector, requests: _Requests, most: int, work: StepBudget) -> list[Vector] | None:
    """Returns what is free on each node of the smallest packing that was found; None if none has so few nodes.

    Args:
        capacity: the amounts of an empty node.
        requests: the requests with their numbers; each fits on an empty node, and needs something.
        most: the most nodes.
        work: steps for all but the first try.
    """
    pace = Pace(work)
    await pace.pause()
    return await _Packing(capacity, requests, most, pace).run()


class _Packing:
    """One run of :func:`pack`.

    Attributes:
        best: what is free on each node of the smallest packing so far; None if there is none of at most ``most``.
        least: a number of nodes below which the requests do not fit.
    """

    def __init__(self, capacity: Vector, requests: _Requests, most: int, pace: Pace) -> None:
        self._capacity, self._requests, self._most, self._pace = capacity, requests, most, pace
        self.best: list[Vector] | None = None
        self.least = least_count(capacity, requests)

    @property
    def _is_done(self) -> bool:
        return self._pace.is_spent or self.least > self._fewer

    @property
    def _fewer(self) -> int:
        """The most nodes of a packing that is of use."""
        return self._most if self.best is None else len(self.best) - 1

    async def run(self) -> list[Vector] | None:
        """Returns the best packing."""
        if self.least <= self._most:
            await self._try_orders([], self._requests)
        if self._is_done or len(self._requests) > _SEARCHED_KINDS:
            return self.best
        relaxed = await relax(self._capacity, self._requests, self._fewer + 1, self._pace.part(_PATTERN_SHARE))
        self.least = max(self.least, relaxed.bound(tuple(self._requests.values())))
        await self._try_patterns(relaxed)
        await self._try_tree([], self._requests, relaxed, self._pace)
        return self.best

    async def _try_orders(self, filled: list[Vector], requests: _Requests) -> None:
        """Puts requests on the first node with room, beside filled nodes."""
        for place, ordered in enumerate(_orders(self._capacity, requests)):
            if (place and self._pace.is_spent) or self.least > self._fewer:
                return
            numbers = [(each, requests[each]) for each in ordered]
            found = await _first_fit(self._capacity, numbers, filled, self._fewer, self._pace)
            if found is not None:
                self.best = found

    async def _try_patterns(self, relaxed: Relaxation) -> None:
        """Uses patterns as often as whole numbers allow, and packs the rest; at least one pattern each time."""
        rest, filled = dict(self._requests), list[Vector]()
        while rest and relaxed.uses and not self._is_done:
            uses = [(pattern, int(times + 1e-6)) for pattern, times in relaxed.uses]
            if not any(times for _, times in uses):
                uses = [(max(relaxed.uses, key=lambda use: use[1])[0], 1)]
            for pattern, times in uses:
                await self._pace.step(1 + len(rest) // KINDS_A_STEP)
                rest, nodes = _use(self._capacity, rest, pattern, times)
                filled += nodes
            rest = {request: number for request, number in rest.items() if number}
            await self._try_orders(filled, rest)
            if rest and not self._is_done:
                relaxed = await relax(self._capacity, rest, self._fewer + 1, self._pace.part(_PATTERN_SHARE))
                await self._try_tree(filled, rest, relaxed, self._pace.part(_REST_SHARE))

    async def _try_tree(self, filled: list[Vector], requests: _Requests, relaxed: Relaxation, pace: Pace) -> None:
        """Tries each smaller number of nodes, beside filled ones."""
        kinds = {each: requests[each] for each in next(iter(_orders(self._capacity, requests)))}
        prices = dict(zip(requests, relaxed.prices, strict=False))
        tree = PackingTree(self._capacity, kinds, [prices.get(each, 0) for each in kinds], relaxed.whole, pace)
        count = self.least
        while count <= self._fewer and not pace.is_spent:
            found = await tree.find(count - len(filled))
            if found is not None:
                self.best = [*filled, *found]
            elif not filled and not pace.is_spent:
                self.least = count + 1
            count += 1


def _use(
    capacity: Vector, requests: _Requests, pattern: Sequence[int], times: int
) -> tuple[dict[Vector, int], list[Vector]]:
    """Fills so many nodes by a pattern, as far as there are requests; returns the rest, and what is free there."""
    rest, nodes = dict(requests), list[Vector]()
    while times:
        content = {each: min(number, rest[each]) for each, number in zip(requests, pattern, strict=True)}
        repeated = min([times, *(rest[each] // number for each, number in content.items() if number)])
        room = capacity
        for request, number in content.items():
            room = minus(room, request, number)
            rest[request] -= number * repeated
        if room == capacity:
            break
        nodes += [room] * repeated
        times -= repeated
    return rest, nodes


def _orders(capacity: Vector, requests: _Requests) -> Iterator[Sequence[Vector]]:
    """Yields orders of the requests, large before small: by the largest part of a node, by the sum, by each amount."""
    parts = {each: [have / max(1, whole) for have, whole in zip(each, capacity, strict=True)] for each in requests}
    yield sorted(requests, key=lambda each: (-max(parts[each]), -sum(parts[each]), each))
    yield sorted(requests, key=lambda each: (-sum(parts[each]), each))
    for place in range(len(capacity)):
        yield sorted(requests, key=lambda each: (-each[place], -sum(parts[each]), each))


async def _first_fit(
    capacity: Vector, ordered: Sequence[tuple[Vector, int]], filled: Sequence[Vector], most: int, pace: Pace
) -> list[Vector] | None:
    free = list(filled)
    for request, number in ordered:
        await pace.step(1 + len(free) // CHECKS_A_STEP)
        left = number
        for place, room in enumerate(free):
            taken = min(left, copies(room, request))
            if taken:
                free[place] = minus(room, request, taken)
                left -= taken
                if not left:
                    break
        while left:
            if len(free) >= most:
                return None
            taken = min(left, copies(capacity, request))
            free.append(minus(capacity, request, taken))
            left -= taken
    return free if len(free) <= most else None
