"""Packs requests for several amounts onto the fewest equal nodes. Pure.

Cards, CPU and memory of a new node are amounts that its pods share, so this is vector bin packing. It has no fast exact
answer. So:

1. Requests are put on the first node with room, large before small, by several meanings of "large".
2. No packing needs fewer nodes than one amount alone does (:func:`least_count`). A packing of that size is the best.
3. Else a search tries each smaller number: it fills node after node with the largest request that is left and as much
   beside it as fits, and goes back where the rest does not fit. It knows the best packing unless its steps run out, as
   they do for many different requests.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from tessera.placement.step_budget import StepBudget

#: The amounts of a request or of a node, in one order.
Vector = tuple[int, ...]

#: Different requests up to which the search runs; each is one level of a recursion.
_SEARCHED_KINDS = 64
#: Checks of a node after which other work of the process comes first; some milliseconds.
_PAUSE = 5_000


def copies(room: Vector, request: Vector) -> int:
    """Returns how often a request that needs something fits into the room."""
    return min(have // need for have, need in zip(room, request, strict=True) if need)


def least_count(capacity: Vector, requests: Mapping[Vector, int]) -> int:
    """Returns a number of nodes below which the requests do not fit, however they are packed.

    Of each amount they need the sum; and two of them that take more than half of it are never on one node.
    """
    least = 0
    for place, whole in enumerate(capacity):
        total = sum(request[place] * number for request, number in requests.items())
        large = sum(number for request, number in requests.items() if 2 * request[place] > whole)
        least = max(least, -(-total // whole) if total else 0, large)
    return least


async def pack(capacity: Vector, requests: Mapping[Vector, int], most: int, work: StepBudget) -> list[Vector] | None:
    """Returns what is free on each node of the smallest packing that was found; None if none has so few nodes.

    Args:
        capacity: the amounts of an empty node.
        requests: the requests with their numbers; each fits on an empty node, and needs something.
        most: the most nodes.
        work: steps for all but the first try.
    """
    least = least_count(capacity, requests)
    if least > most:
        return None
    best: list[Vector] | None = None
    for ordered in _orders(capacity, requests):
        if best is not None and work.is_spent:
            return best
        found = await _first_fit(capacity, [(each, requests[each]) for each in ordered], most, work)
        if found is not None and (best is None or len(found) < len(best)):
            best = found
        if best is not None and len(best) == least:
            return best
        if best is None and work.is_spent:
            return None
    if len(requests) <= _SEARCHED_KINDS:
        for count in range(least, most + 1 if best is None else len(best)):
            found = _Search(capacity, requests, work).find(count)
            if found is not None:
                return found
            if work.is_spent:
                break
    return best


def add(free: list[Vector], request: Vector) -> bool:
    """Puts a request on the first node with room; returns False if none has it."""
    for place, room in enumerate(free):
        if copies(room, request):
            free[place] = _minus(room, request, 1)
            return True
    return False


def _orders(capacity: Vector, requests: Mapping[Vector, int]) -> Iterator[Sequence[Vector]]:
    """Yields orders of the requests, large before small: by the largest part of a node, by the sum, by each amount."""
    parts = {each: [have / max(1, whole) for have, whole in zip(each, capacity, strict=True)] for each in requests}
    yield sorted(requests, key=lambda each: (-max(parts[each]), -sum(parts[each]), each))
    yield sorted(requests, key=lambda each: (-sum(parts[each]), each))
    for place in range(len(capacity)):
        yield sorted(requests, key=lambda each: (-each[place], -sum(parts[each]), each))


async def _first_fit(
    capacity: Vector, ordered: Sequence[tuple[Vector, int]], most: int, work: StepBudget
) -> list[Vector] | None:
    free: list[Vector] = []
    checks = 0
    for request, number in ordered:
        checks += len(free) + 1
        if checks > _PAUSE:
            work.spend(checks)
            checks = 0
            await asyncio.sleep(0)
        left = number
        for place, room in enumerate(free):
            taken = min(left, copies(room, request))
            if taken:
                free[place] = _minus(room, request, taken)
                left -= taken
                if not left:
                    break
        while left:
            if len(free) >= most:
                return None
            taken = min(left, copies(capacity, request))
            free.append(_minus(capacity, request, taken))
            left -= taken
    work.spend(checks)
    return free


def _minus(room: Vector, request: Vector, times: int) -> Vector:
    return tuple(have - need * times for have, need in zip(room, request, strict=True))


class _Search:
    """The search for a packing of a given size.

    Args:
        capacity: the amounts of an empty node.
        requests: the requests with their numbers.
        work: the steps; one for each request that is tried on a node.
    """

    def __init__(self, capacity: Vector, requests: Mapping[Vector, int], work: StepBudget) -> None:
        self._capacity = capacity
        self._kinds = next(iter(_orders(capacity, requests)))
        self._numbers = tuple(requests[each] for each in self._kinds)
        self._work = work

    def find(self, count: int) -> list[Vector] | None:
        """Returns what is free on each node of a packing; None if there is none, or the steps ran out."""
        #: What was left to pack, with the most nodes onto which it did not go.
        hopeless: dict[tuple[int, ...], int] = {}
        #: For each filled node, and the one to fill next: what was left before, and the contents not yet tried.
        path: list[tuple[tuple[int, ...], Iterator[tuple[Vector, tuple[int, ...]]]]] = []
        free: list[Vector] = []
        left = self._numbers
        while any(left):
            nodes = count - len(free)
            if nodes > hopeless.get(left, 0) and self._least(left) <= nodes:
                path.append((left, self._fill(left)))
            elif free:
                free.pop()
            content = None
            while path and (content := next(path[-1][1], None)) is None:
                failed, _ = path.pop()
                hopeless[failed] = max(count - len(path), hopeless.get(failed, 0))
                if free:
                    free.pop()
            if content is None or self._work.is_spent:
                return None
            room, left = content
            free.append(room)
        return free

    def _least(self, left: tuple[int, ...]) -> int:
        self._work.spend()
        return least_count(self._capacity, Counter(dict(zip(self._kinds, left, strict=True))))

    def _fill(self, left: tuple[int, ...]) -> Iterator[tuple[Vector, tuple[int, ...]]]:
        """Yields contents of one node, to which nothing can be added: what is free there, and what is left to pack.

        The largest request that is left is on some node, so it is on this one.
        """
        first = next(place for place, number in enumerate(left) if number)
        request = self._kinds[first]
        for number in range(min(left[first], copies(self._capacity, request)), 0, -1):
            room = _minus(self._capacity, request, number)
            taken = (*left[:first], left[first] - number)
            yield from self._fill_rest(room, left, taken)

    def _fill_rest(
        self, room: Vector, left: tuple[int, ...], taken: tuple[int, ...]
    ) -> Iterator[tuple[Vector, tuple[int, ...]]]:
        """``taken`` is what is left of the requests that were decided on."""
        place = len(taken)
        if self._work.is_spent:
            return
        self._work.spend()
        if place == len(left):
            if not any(number and copies(room, self._kinds[each]) for each, number in enumerate(taken)):
                yield room, taken
            return
        request = self._kinds[place]
        for number in range(min(left[place], copies(room, request)), -1, -1):
            yield from self._fill_rest(_minus(room, request, number), left, (*taken, left[place] - number))
