"""How long past starts and waits took, and how often pods start, in tables that pods of all namespaces fill.

A pod starts later than it gets its slices: kubelet pulls its image, and does some more. How much later depends on the
image, and on whether the node has it. And how long pods of a size waited says how long one of them will wait; that is a
second forecast beside the simulation, which knows neither pods that will come nor reservations that will move. It is
conditional, as for leases: of the pods that waited longer than this one has, and with those that still wait counted up
to now. Without the latter a jam would show once it is over.

Where too little is known of the leases, the rate of starts forecasts (:class:`RecentStarts`). If pods with the same
slices start independently of each other at a rate, the time until the k-th start has a Gamma distribution; its
quantiles are those of Wilson and Hilferty (1931), good to some per cent.

No namespace drives out what is known of others. Each entry of a table belongs to the namespace that brought it. Of too
many, the namespace with the most entries loses the one that was used longest ago. An entry that others use too stays
while they use it more often than that namespace brings new ones; else the next of them brings it anew, as its own.

A :class:`SurvivalCurve` comes from the leases of a kind that ended, and from those that still run.

The estimator is Kaplan and Meier's with delayed entry: a lease counts at an age only from the age that it had when the
observation began, up to the age at which it ended or is now. So leases that were running already, and those that still
run, bias nothing. ``lifelines`` and ``scikit-survival`` have it too; both bring pandas and scipy, some 200 MB, for
twenty lines of arithmetic.

Rules:

- A lease of a given age is asked for, so the curve is conditional: P(T > age + t | T > age).
- Where everyone at risk ends at one age, half an end is left over, so that a later observation still counts.
- Beyond the oldest lease that was seen the curve goes on as P(T > t) ~ 1/t: what ran long runs as long again (Lindy).
"""

import math
from bisect import bisect_left, bisect_right
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

#: Longer durations are errors of a clock, in seconds.
HUNDRED_YEARS = 3_153_600_000
#: Least age in seconds; the tail 1/t needs one above zero.
_LEAST_AGE = 1.0
#: Keeps the exponential finite for shares next to 1.
_MOST_EXPONENT = 40.0
#: The entry of all pods together, which belongs to no namespace and never goes.
EVERY = ""
#: Images whose starts are known: a few kinds of work have most of them, and others take the times of all images.
START_IMAGES = 200
#: Starts of one image: a pull changes with each version.
START_SAMPLES = 20
#: Sizes whose waits are known; with 100 waits each, some 125 KiB of the record.
WAIT_SIZES = 128
#: Waits of one size: a quantile of 0.9 needs some dozens, also of those that waited longer.
WAIT_SAMPLES = 100
#: Least longer waits that say something.
LEAST_LONGER_WAITS = 5
#: A start that takes longer says nothing of the next one: its cause was no pull. Seconds.
_PULL_TAKES = 3600.0
#: Starts that are counted, almost three in each second.
RATE_STARTS = 10_000
#: Seconds over which starts are counted.
WINDOW = 3600.0
#: Starts in the window that make a rate.
LEAST_STARTS = 3
#: Quantiles 0.5 and 0.9 of the normal distribution.
_NORMAL = (0.0, 1.2816)


class SurvivalCurve:
    """The curve of one kind of lease.

    Args:
        lives: of each lease its age when the observation began, its age at its end or now, and True if it ended; ages
            in seconds.

    Attributes:
        ends: number of leases that ended.
    """

    def __init__(self, lives: Iterable[tuple[float, float, bool]]) -> None:
        entries: list[float] = []
        ages: list[float] = []
        running: list[float] = []
        for entry, age, ended in lives:
            entries.append(entry)
            (ages if ended else running).append(max(_LEAST_AGE, age))
        for each in (entries, ages, running):
            each.sort()
        self.ends = len(ages)
        self._ended = ages
        #: The latest age at which any of them was seen.
        self._last = max((*ages[-1:], *running[-1:]), default=_LEAST_AGE)
        #: Ages at which leases ended, each once, and minus the logarithm of the survival after each.
        self._ages: list[float] = []
        self._hazards: list[float] = []
        hazard, index, number = 0.0, 0, len(ages)
        while index < number:
            age, after = ages[index], index + 1
            while after < number and ages[after] == age:
                after += 1
            count = after - index
            at_risk = bisect_left(entries, age) - index - bisect_left(running, age)
            if at_risk > count:
                hazard -= math.log((at_risk - count) / at_risk)
            else:
                hazard -= math.log(0.5 / (count + 0.5))
            self._ages.append(age)
            self._hazards.append(hazard)
            index = after

    def ends_after(self, age: float) -> int:
        """Returns the number of leases that ended at a later age than this one."""
        return self.ends - bisect_right(self._ended, age)

    def survival(self, age: float) -> float:
        """Returns the share of leases that live longer than this age."""
        return math.exp(-self._hazard(age))

    def residual(self, age: float, share: float) -> float:
        """Returns the seconds within which this share of the leases of an age end.

        Args:
            age: the present age in seconds.
            share: above 0 and below 1; 0.5 gives the median.
        """
        wanted = self._hazard(age) - math.log1p(-share)
        index = bisect_left(self._hazards, wanted)
        if index < len(self._ages):
            return max(0.0, self._ages[index] - age)
        known = max(self._hazard(age), self._hazards[-1] if self._hazards else 0.0)
        return max(age, self._last) * math.exp(min(wanted - known, _MOST_EXPONENT)) - age

    def _hazard(self, age: float) -> float:
        index = bisect_right(self._ages, age)
        found = self._hazards[index - 1] if index else 0.0
        return found + math.log(age / self._last) if age > self._last else found


def quantile(values: Sequence[float], share: float) -> float:
    """Returns the least value that this share of the values does not exceed.

    Raises:
        ValueError: there are no values.
    """
    if not values:
        raise ValueError("a quantile needs at least one value")
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, math.ceil(share * len(ordered)) - 1))]


def note_use(entries: OrderedDict[str, Any], brought_by: dict[str, str], key: str, namespace: str, most: int) -> None:
    """Takes in that a pod of a namespace used an entry, and drops what is too much.

    Args:
        entries: the table, with this entry in it; the entry that was used last comes last.
        brought_by: by key of the table, the namespace that brought it; missing or empty if unknown.
        key: the entry.
        namespace: the pod's namespace.
        most: the entries that are kept at most.
    """
    if key != EVERY and not brought_by.get(key):
        brought_by[key] = namespace
    entries.move_to_end(key)
    while len(entries) > most:
        counts = Counter(brought_by.get(each, "") for each in entries if each != EVERY)
        crowding = max(counts, key=counts.__getitem__)
        dropped = next(each for each in entries if each != EVERY and brought_by.get(each, "") == crowding)
        del entries[dropped]
        brought_by.pop(dropped, None)


class PastTimes:
    """The last times of each key of a table, in whole seconds.

    Args:
        times: what was kept, the key that was used last at the end.
        brought_by: by key, the namespace that brought it, as kept.
        keys: the number of keys at most.
        samples: the number of times of a key at most; the oldest goes.

    Attributes:
        times: by key, the oldest first.
        brought_by: by key of these, the namespace that brought it.
    """

    def __init__(
        self, times: Iterable[tuple[str, Iterable[int]]], brought_by: Mapping[str, str] | None, keys: int, samples: int
    ) -> None:
        self._keys, self._samples = keys, samples
        self.times: OrderedDict[str, deque[int]] = OrderedDict(
            (key, deque(seconds, maxlen=samples)) for key, seconds in times
        )
        self.brought_by = {key: by for key, by in (brought_by or {}).items() if key in self.times}

    def _add(self, key: str, seconds: float, namespace: str) -> None:
        self.times.setdefault(key, deque(maxlen=self._samples)).append(round(seconds))
        note_use(self.times, self.brought_by, key, namespace, self._keys)


class StartTimes(PastTimes):
    """Seconds from the promise of slices to the start of the containers, by image, and of all images."""

    def __init__(
        self, times: Iterable[tuple[str, Iterable[int]]] = (), brought_by: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(times, brought_by, START_IMAGES, START_SAMPLES)

    def add(self, image: str, seconds: float, namespace: str) -> None:
        """Takes in a start of a namespace's pod."""
        if 0 <= seconds <= _PULL_TAKES:
            for key in dict.fromkeys((image, EVERY)):
                self._add(key, seconds, namespace)

    def seconds(self, image: str, share: float) -> float:
        """Returns the seconds within which this share of the starts of an image came; 0 while nothing is known."""
        known = self.times.get(image) or self.times.get(EVERY)
        return float(quantile(known, share)) if known else 0.0


class WaitHistory(PastTimes):
    """Seconds from creation to start of pods that had to wait for room, by their profiles."""

    def __init__(
        self, times: Iterable[tuple[str, Iterable[int]]] = (), brought_by: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(times, brought_by, WAIT_SIZES, WAIT_SAMPLES)

    def add(self, size: str, seconds: float, namespace: str) -> None:
        """Takes in the start of a namespace's pod that had to wait; an impossible wait counts nothing."""
        if 0 <= seconds <= HUNDRED_YEARS:
            self._add(size, seconds, namespace)

    def curve(self, size: str, waiting: Iterable[float]) -> SurvivalCurve:
        """Returns the curve of the waits of a size.

        Args:
            size: the profiles.
            waiting: seconds that pods of this size have waited and still wait.
        """
        past = ((0.0, float(each), True) for each in self.times.get(size, ()))
        return SurvivalCurve((*past, *((0.0, each, False) for each in waiting)))


class RecentStarts:
    """The starts of the last hour, by profiles."""

    def __init__(self) -> None:
        #: Time, profiles, and whether the pod had waited for room; the oldest first, at most :data:`RATE_STARTS`.
        self._starts: deque[tuple[float, tuple[str, ...], bool]] = deque()
        #: Numbers of these starts by profiles, and of those of pods that had waited; none is 0.
        self._counts: Counter[tuple[str, ...]] = Counter()
        self._waited: Counter[tuple[str, ...]] = Counter()
        self._began: float | None = None

    def begin(self, now: float) -> None:
        """Notes when counting began."""
        if self._began is None:
            self._began = now

    def add(self, profiles: tuple[str, ...], now: float, *, waited: bool) -> None:
        """Counts a start; ``waited`` is true for a pod that had waited for room.

        A pod that found room at once says nothing of how often room is freed: a rate from the starts on empty cards
        would promise the same for full ones.
        """
        if len(self._starts) == RATE_STARTS:
            self._drop_oldest()
        self._starts.append((now, profiles, waited))
        self._counts[profiles] += 1
        if waited:
            self._waited[profiles] += 1

    def count(self, profiles: tuple[str, ...], now: float) -> int:
        """Returns the starts of pods with these slices in the last hour."""
        self._forget(now)
        return self._counts[profiles]

    def wait(self, profiles: tuple[str, ...], place: int, now: float) -> tuple[float, float] | None:
        """Returns the seconds within which half, and nine of ten, of the pods in this place start.

        Args:
            profiles: the pod's slices, sorted.
            place: its place among the pods with the same slices, from 1.
            now: seconds since 1970.

        Returns:
            None with too few starts of pods that had waited.
        """
        self._forget(now)
        count = self._waited[profiles]
        if count < LEAST_STARTS:
            return None
        seen = WINDOW if self._began is None else min(WINDOW, max(60.0, now - self._began))
        p50, p90 = (place * (1 - 1 / (9 * place) + z / (3 * place**0.5)) ** 3 * seen / count for z in _NORMAL)
        return p50, p90

    def _forget(self, now: float) -> None:
        while self._starts and self._starts[0][0] < now - WINDOW:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        _, profiles, waited = self._starts.popleft()
        for counts in (self._counts, self._waited) if waited else (self._counts,):
            counts[profiles] -= 1
            if not counts[profiles]:
                del counts[profiles]
