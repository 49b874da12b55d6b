"""How few equal nodes can hold requests if nodes may be divided: a proven bound, and contents that come close to it.

A *pattern* is the content of one node: a number of requests of each kind. The fewest nodes are the smallest sum of
times that patterns are used so that every request is covered. With fractions of times this is a linear program of few
rows and very many columns. Gilmore and Gomory (Operations Research 9, 1961) solve it with only the columns that it
needs: prices of the kinds follow from the present columns, and the dearest pattern by these prices is the next column.

- Any prices prove a bound: as many nodes as all requests cost, over the cost of the dearest pattern. Prices are whole
  numbers here, and the dearest pattern is exact; so what the program rounds makes no bound too large.
- The simplex method is written here: no dependency of Tessera has one, and it takes few lines at this size.

A :class:`Pace` counts the steps of a search, and lets other work of the process come first between two parts of it.
"""

import asyncio
import math
from collections.abc import Mapping, Sequence

import msgspec

from tessera.placement.demand import StepBudget

#: Steps of one part: 2 to 8 ms, since a step costs 10 to 40 µs (`bench/new_nodes.py`).
PART = 200
#: Parts of contents that one step makes, and kinds of requests that one step looks through.
CONTENTS_A_STEP, KINDS_A_STEP = 4, 8


class _Part:
    """The steps since other work came first; parts of a search share it."""

    def __init__(self) -> None:
        self.steps = 0


class Pace:
    """The steps of one search.

    Args:
        work: the budget.
    """

    def __init__(self, work: StepBudget, part: _Part | None = None) -> None:
        self._work = work
        self._taken = part or _Part()

    @property
    def is_spent(self) -> bool:
        """True if no steps are left."""
        return self._work.is_spent

    @property
    def is_due(self) -> bool:
        """True if other work should come first now."""
        return self._taken.steps >= PART

    def spend(self, steps: int = 1) -> None:
        """Counts steps."""
        self._work.spend(steps)
        self._taken.steps += steps

    async def pause(self) -> None:
        """Lets other work come first."""
        self._taken.steps = 0
        await asyncio.sleep(0)

    async def step(self, steps: int = 1) -> None:
        """Counts steps, and pauses if a pause is due."""
        self.spend(steps)
        if self.is_due:
            await self.pause()

    def part(self, share: float) -> "Pace":
        """Returns the pace of a part of the search, with a share of the steps that are left."""
        return Pace(self._work.part(share), self._taken)


#: The amounts of a request or of a node, in one order.
Vector = tuple[int, ...]
#: How many requests of each kind.
Counts = tuple[int, ...]

#: The price of what fills a node.
_WHOLE = 1 << 30
#: A smaller number counts as zero in the program.
_TINY = 1e-9
#: Entries of the program's matrix that one step changes.
_ENTRIES_A_STEP = 50


class Relaxation(msgspec.Struct, frozen=True):
    """The answer if nodes may be divided.

    Attributes:
        prices: the price of each kind.
        whole: the price of the dearest pattern; 0 if the steps did not suffice to find any.
        uses: patterns, and how often each is used; together they cover the requests.
    """

    prices: Sequence[int]
    whole: int
    uses: Sequence[tuple[Counts, float]]

    def bound(self, numbers: Counts) -> int:
        """Returns a number of nodes below which so many requests, at most those of the program, do not fit."""
        if not self.whole:
            return 0
        return -(-sum(price * number for price, number in zip(self.prices, numbers, strict=True)) // self.whole)


def copies(room: Vector, request: Vector) -> int:
    """Returns how often a request that needs something fits into the room."""
    return min(have // need for have, need in zip(room, request, strict=True) if need)


def minus(room: Vector, request: Vector, times: int) -> Vector:
    """Returns what so many of a request leave of the room."""
    return tuple(have - need * times for have, need in zip(room, request, strict=True))


async def relax(capacity: Vector, requests: Mapping[Vector, int], enough: int, pace: Pace) -> Relaxation:
    """Returns the answer if nodes may be divided, or the best that was found when the steps ran out.

    Args:
        capacity: the amounts of an empty node.
        requests: the kinds of requests with their numbers; each fits on an empty node, and needs something.
        enough: the search ends when it has proven so many nodes.
        pace: the steps.
    """
    kinds, numbers = tuple(requests), tuple(requests.values())
    pricing = _Pricing(capacity, kinds, numbers, pace)
    program = _Program([min(number, copies(capacity, kind)) for kind, number in requests.items()], numbers)
    best = Relaxation((), 0, ())
    while not pace.is_spent:
        await pace.step(1 + len(kinds) ** 2 // _ENTRIES_A_STEP)
        exact = program.prices()
        cheap = min(range(len(exact)), key=exact.__getitem__)
        if exact[cheap] < -_TINY:
            program.enter(tuple(-(row == cheap) for row in range(len(kinds))), 0)  # fewer than a pattern holds
            continue
        prices = [int(max(0.0, price) * _WHOLE) for price in exact]
        worth, pattern = await pricing.dearest(prices)
        if pattern is None:
            break
        found = Relaxation(prices, worth, ())
        if found.bound(numbers) > best.bound(numbers):
            best = found
        if best.bound(numbers) >= enough or worth <= _WHOLE * (1 + _TINY) or not program.enter(pattern, 1):
            break
    return msgspec.structs.replace(best, uses=program.uses())


class _Pricing:
    """Finds the dearest pattern, by a search in the order of the price of a request over the part that it takes."""

    def __init__(self, capacity: Vector, kinds: Sequence[Vector], numbers: Counts, pace: Pace) -> None:
        self._capacity, self._kinds, self._numbers, self._pace = capacity, kinds, numbers, pace
        self._parts = [sum(need / max(1, have) for need, have in zip(each, capacity, strict=True)) for each in kinds]

    async def dearest(self, prices: Sequence[int]) -> tuple[int, Counts | None]:
        """Returns the price of the dearest pattern, and the pattern; None if the steps ran out before it was found."""
        order = sorted(
            (kind for kind, price in enumerate(prices) if price), key=lambda kind: -prices[kind] / self._parts[kind]
        )
        limits = self._limits(order, prices)
        best, dearest = 0, dict[int, int]()
        #: Parts of patterns: place of the next kind, free room, price, and the numbers of the kinds before.
        tried: list[tuple[int, Vector, int, tuple[tuple[int, int], ...]]] = [(0, self._capacity, 0, ())]
        while tried:
            place, room, worth, content = tried.pop()
            if worth > best:
                best, dearest = worth, dict(content)
            if place == len(order) or worth + self._limit(limits[place], room) <= best:
                continue
            kind = order[place]
            most = min(self._numbers[kind], copies(room, self._kinds[kind]))
            await self._pace.step(1 + most // CONTENTS_A_STEP)
            if self._pace.is_spent:
                return 0, None
            tried.append((place + 1, room, worth, content))
            for number in range(1, most + 1):
                room = minus(room, self._kinds[kind], 1)
                tried.append((place + 1, room, worth + number * prices[kind], (*content, (kind, number))))
        return best, tuple(dearest.get(kind, 0) for kind in range(len(prices)))

    def _limits(self, order: Sequence[int], prices: Sequence[int]) -> Sequence[Sequence[float]]:
        """Returns, by place in the order, the highest price from there on of a unit of each amount, and of a part."""
        found: list[list[float]] = []
        highest = [0.0] * (len(self._capacity) + 1)
        for kind in reversed(order):
            rates = [prices[kind] / need if need else math.inf for need in self._kinds[kind]]
            highest = list(map(max, highest, [*rates, prices[kind] / self._parts[kind]]))
            found.append(highest)
        return found[::-1]

    def _limit(self, rates: Sequence[float], room: Vector) -> float:
        """Returns the most that fits into the room is worth, and one more for what is rounded."""
        part = sum(have / whole for have, whole in zip(room, self._capacity, strict=True) if whole)
        worth = [have * rate for have, rate in zip(room, rates, strict=False) if rate != math.inf]
        return 1 + min(part * rates[-1], *worth, math.inf)


class _Program:
    """The linear program over some patterns, by the revised simplex method.

    It begins with a pattern of each kind alone.
    """

    def __init__(self, most: Sequence[int], numbers: Counts) -> None:
        size = range(len(numbers))
        #: The columns in use, their cost (1 for a pattern), and how often each is used.
        self._columns = [tuple(most[row] * (row == column) for row in size) for column in size]
        self._costs = [1] * len(numbers)
        self._times = [number / each for number, each in zip(numbers, most, strict=True)]
        #: The inverse of the matrix of these columns.
        self._inverse = [[(row == column) / most[row] for column in size] for row in size]

    def prices(self) -> Sequence[float]:
        """Returns the price of each kind by which every column in use costs what it is worth."""
        used = [row for row, cost in zip(self._inverse, self._costs, strict=True) if cost]
        return [math.fsum(column) for column in zip(*used, strict=True)]

    def enter(self, column: Counts, cost: int) -> bool:
        """Takes a column into use in place of the one that it uses up first; False if there is none."""
        rates = [sum(map(float.__mul__, row, map(float, column))) for row in self._inverse]
        ratios = [(self._times[row] / rate, row) for row, rate in enumerate(rates) if rate > _TINY]
        if not ratios:
            return False
        times, row = min(ratios)
        pivot = self._inverse[row] = [value / rates[row] for value in self._inverse[row]]
        for other, rate in enumerate(rates):
            if other != row and rate:
                line = self._inverse[other]
                self._inverse[other] = [value - rate * under for value, under in zip(line, pivot, strict=True)]
                self._times[other] = max(0.0, self._times[other] - rate * times)
        self._columns[row], self._costs[row], self._times[row] = column, cost, times
        return True

    def uses(self) -> Sequence[tuple[Counts, float]]:
        """Returns the patterns in use, and how often each is used."""
        lines = zip(self._columns, self._costs, self._times, strict=True)
        return [(column, times) for column, cost, times in lines if cost and times > _TINY]
