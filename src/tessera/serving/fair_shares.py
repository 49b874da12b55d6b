"""Divides what many share among those who want it, so that one who asks much takes nothing from one who asks little.

The members of a share are told apart by a key: a user, a namespace whose service accounts count as one, an address.
:func:`find_giver` divides places, :class:`FairPace` a rate, :class:`FairTurns` the time of one worker.
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Hashable, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Generic, TypeVar


class Pace:
    """Allows a number of actions a second, and as many at once after a pause of a second.

    Args:
        rate: actions a second.
    """

    def __init__(self, rate: int) -> None:
        self._rate = float(rate)
        #: Actions that may be done at :attr:`_at`; never more than the rate.
        self._left = float(rate)
        self._at = 0.0

    def take(self, now: float, *, spare: float = 0.0) -> bool:
        """Whether one more action may be done at this time, and ``spare`` are left then; counts it if so."""
        self._left = min(self._rate, self._left + max(0.0, now - self._at) * self._rate)
        self._at = now
        if self._left < 1.0 + spare:
            return False
        self._left -= 1.0
        return True


K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class NoTurnError(Exception):
    """As many wait as may, and none of them has so many places that it must give one up."""


def find_giver(held: Mapping[K, int], key: K) -> K | None:
    """Returns who gives a place up to ``key`` when all are taken; None if that would only turn the tables.

    Args:
        held: the places of each.
        key: who wants one more.
    """
    most = max(held, key=lambda each: held[each], default=None)
    return most if most is not None and held[most] >= held.get(key, 0) + 2 else None


class FairPace(Generic[K]):
    """Allows a number of actions a second; of these, each key that asks has an equal part.

    A part is at least one action. If as many keys ask as there are actions in a second, parts are given for a longer
    time, in which half of the actions suffice for all, and a key leaves some actions to those that had fewer: the more
    it has had, the more it leaves. So who asks seldom finds one, however many ask again and again.

    Args:
        rate: actions a second.
    """

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._all = Pace(rate)
        #: Start of the present period, the actions of each key that asked in it, and the same of the one before.
        self._began = float("-inf")
        self._taken: Counter[K] = Counter()
        self._before: Counter[K] = Counter()

    def take(self, now: float, key: K) -> bool:
        """Whether the key may do one more at this time; counts it if so."""
        self._start_period(now)
        self._taken[key] += 0
        number = self._number()
        is_crowded = number >= self._rate
        has_had_part = self._taken[key] >= max(1, self._rate // number)
        if has_had_part and not is_crowded:
            return False
        share_left = 0.5 if has_had_part else 0.25 if self._before[key] else 0.0
        if not self._all.take(now, spare=share_left * self._rate if is_crowded else 0.0):
            return False
        self._taken[key] += 1
        return True

    def _start_period(self, now: float) -> None:
        number = self._number()
        period = 1.0 if number < self._rate else 2.0 * number / self._rate
        if now - self._began >= period:
            self._before = self._taken if now - self._began < 2 * period else Counter()
            self._began, self._taken = now, Counter()

    def _number(self) -> int:
        """The number of keys that asked in the present period or the one before."""
        return len(self._before.keys() | self._taken.keys())


class FairQueue(Generic[K, T]):
    """A queue in which each key that waits gets its next turn before any other gets two."""

    def __init__(self) -> None:
        #: What waits, by key; the keys in the order of their turns. A key without items is not there.
        self._waiting: dict[K, deque[T]] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, key: K, item: T) -> None:
        """Adds an item, the last of its key."""
        self._waiting.setdefault(key, deque()).append(item)

    def pop(self) -> T:
        """Removes the first item of the key that is next, which then is the last one.

        Raises:
            StopIteration: nothing waits.
        """
        key = next(iter(self._waiting))
        items = self._waiting.pop(key)
        item = items.popleft()
        if items:
            self._waiting[key] = items
        return item

    def take(self, most: int) -> Iterator[T]:
        """Removes so many items, in the order of their turns."""
        for _ in range(most):
            if self._waiting:
                yield self.pop()

    def pop_last(self, key: K) -> T:
        """Removes the last item of a key that has one."""
        items = self._waiting[key]
        item = items.pop()
        if not items:
            del self._waiting[key]
        return item

    def remove(self, key: K, item: T) -> None:
        """Removes an item; one that is not in the queue is no error."""
        items = self._waiting.get(key)
        if items is not None and item in items:
            items.remove(item)
            if not items:
                del self._waiting[key]

    def counts(self) -> dict[K, int]:
        """Returns the number of items of each key."""
        return {key: len(items) for key, items in self._waiting.items()}


class FairTurns(Generic[K]):
    """Gives turns one after the other; each key that waits gets its next one before any other gets two.

    Args:
        most: turns that may be waited for, of all keys together. One more takes the last place of the key that has
            most, or is refused.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken = False
        self._waiting: FairQueue[K, asyncio.Future[None]] = FairQueue()

    @asynccontextmanager
    async def turn(self, key: K) -> AsyncIterator[None]:
        """Waits for a turn, which lasts until the end of the block.

        Raises:
            NoTurnError: too many wait.
        """
        if self._taken:
            await self._wait(key)
        self._taken = True
        try:
            yield
        finally:
            self._pass_on()

    async def _wait(self, key: K) -> None:
        self._make_room(key)
        place = asyncio.get_running_loop().create_future()
        self._waiting.add(key, place)
        try:
            await place
        except asyncio.CancelledError:
            self._waiting.remove(key, place)
            if place.done() and not place.cancelled() and place.exception() is None:
                self._pass_on()  # the turn came in the moment in which its owner went
            raise

    def _make_room(self, key: K) -> None:
        held = self._waiting.counts()
        if sum(held.values()) < self._most:
            return
        giver = find_giver(held, key)
        if giver is None:
            raise NoTurnError
        self._waiting.pop_last(giver).set_exception(NoTurnError())

    def _pass_on(self) -> None:
        """Gives the turn to the key that is next."""
        while self._waiting:
            place = self._waiting.pop()
            if not place.done():  # one whose owner is being cancelled is
                place.set_result(None)
                return
        self._taken = False
