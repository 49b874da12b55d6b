"""How many spare slices a queue keeps of a profile with ``auto``: by what pods came, and how soon a slice is replaced.

A spare slice that a pod takes is missing until another is free, with the images of its next pod: for L seconds. Pods
come at random with the rate r. One that finds all n spare slices missing takes the next slot that somebody leaves, W
seconds later, and does not wait for a spare slice. So the share that finds none is Erlang's loss formula B(n, r x L),
for any distribution of L, and n - r x L x (1 - B) spare slices are idle on average. If a second of waiting costs as
much as p seconds of an idle slice, the cheapest n makes idle + p x r x B x W least.

- The rate is the larger of that of the last hour and that of the last day, so that a queue grows at once and shrinks
  slowly. It counts pods that came to a service; not those that took the place of one that had just ended. So an owner
  whose pods restart for ever keeps no slices by that.
- L and W are the means of the last :data:`SAMPLES` times that slices were missing, and that pods without a spare slice
  waited. Where room is free anyway W is 0, and so is the number.
- The time that containers take to be ready is no part of W: it passes with a spare slice and without one.
- Never more than :data:`AUTO_MOST`. Numbers are reckoned anew each :data:`EVERY` seconds.

A new controller knows of arrivals what living pods say by their times of creation, and of L and W nothing: then one
slice is kept if a pod came in the last day.
"""

from collections import deque
from collections.abc import Collection
from typing import NamedTuple

from tessera.text import count_noun

#: Most spare slices of one profile of a queue.
AUTO_MOST = 8
#: Replacement times that count, and arrivals of a profile that are remembered.
SAMPLES, _ARRIVALS = 32, 1_000
#: Seconds between two numbers.
EVERY = 60.0
#: Seconds in which a pod takes the place of one of its owner's that ended (as inherited slots are kept).
_REPLACED = 30.0
_HOUR, _DAY = 3600.0, 86_400.0


class Size(NamedTuple):
    """A number of spare slices, and how it came."""

    number: int
    why: str


class SpareDemand:
    """What is known of the pods of one queue that need one slice of a profile."""

    def __init__(self) -> None:
        self._came: deque[float] = deque(maxlen=_ARRIVALS)
        #: Pods that ended, by owner's name: when the last ones did. The owner whose pod ended last is the last.
        self._ended: dict[str, deque[float]] = {}
        self._missing: deque[float] = deque(maxlen=SAMPLES)
        self._waits: deque[float] = deque(maxlen=SAMPLES)

    def note_pod(self, owner: str, created: float) -> bool:
        """Takes in a pod that is new; returns False if it replaces another one."""
        ended = self._ended.get(owner, deque())
        while ended and ended[0] < created - _REPLACED:
            ended.popleft()
        replaces = bool(ended)
        if replaces:
            ended.popleft()
        else:
            self._came.append(created)
        if not ended:
            self._ended.pop(owner, None)
        return not replaces

    def note_end(self, owner: str, now: float) -> None:
        """Takes in that a pod has ended."""
        self._ended[owner] = self._ended.pop(owner, deque(maxlen=_ARRIVALS))
        self._ended[owner].append(now)
        while self._ended[first := next(iter(self._ended))][-1] < now - _REPLACED:
            del self._ended[first]

    def note_missing(self, seconds: float) -> None:
        """Takes in how long a spare slice was missing."""
        self._missing.append(max(0.0, seconds))

    def note_wait(self, seconds: float) -> None:
        """Takes in how long a pod waited that got no spare slice."""
        self._waits.append(max(0.0, seconds))

    def rate(self, now: float) -> float:
        """Pods an hour."""
        last_hour, last_day = (sum(now - each <= span for each in self._came) for span in (_HOUR, _DAY))
        return max(float(last_hour), last_day * _HOUR / _DAY)

    def size(self, price: int, now: float) -> Size:
        """Returns the number of spare slices.

        Args:
            price: seconds of an idle slice that cost as much as a second that a pod waits.
            now: seconds since 1970.
        """
        rate = self.rate(now)
        if not rate:
            return Size(0, "auto: no pod of a service came in a day")
        came = f"auto: {rate:.2g} new pods of services an hour"
        if not self._missing and not self._waits:
            return Size(1, f"{came}; how long they wait is not known yet")
        missing, waits = _mean(self._missing or self._waits), _mean(self._waits or self._missing)
        number = cheapest(rate / _HOUR, missing, waits, price)
        idle = count_noun(price, "second")
        most = f", {AUTO_MOST} at most" if number == AUTO_MOST else ""
        return Size(
            number,
            f"{came}; on average, one without a spare slice waits {waits:.0f} s, and a taken slice is replaced after"
            f" {missing:.0f} s; a second of waiting costs {idle} of an idle slice{most}",
        )


def _mean(values: Collection[float]) -> float:
    return sum(values) / len(values)


def cheapest(rate: float, missing: float, waits: float, price: float) -> int:
    """The number of spare slices that costs least, idle slices and waiting pods together; :data:`AUTO_MOST` at most.

    Args:
        rate: pods a second.
        missing: seconds for which a slice that is taken is missing.
        waits: seconds that a pod waits which finds none.
        price: seconds of an idle slice that cost as much as a second that a pod waits.
    """
    load, lost = rate * missing, 1.0
    costs: list[float] = []
    for number in range(AUTO_MOST + 1):
        lost = load * lost / (number + load * lost) if number else 1.0  # Erlang B, by its recursion
        costs.append(number - load * (1 - lost) + price * rate * lost * waits)
    return costs.index(min(costs))
