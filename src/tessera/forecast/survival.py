"""The survival curve of a kind of lease, from leases that ended and from those that still run.

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
from collections.abc import Iterable, Sequence

#: Longer durations are errors of a clock, in seconds.
HUNDRED_YEARS = 3_153_600_000
#: Least age in seconds; the tail 1/t needs one above zero.
_LEAST_AGE = 1.0
#: Keeps the exponential finite for shares next to 1.
_MOST_EXPONENT = 40.0


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
