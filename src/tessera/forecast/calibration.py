"""Corrects forecasts by how the earlier ones came out, and blends that of the simulation with that of past waits.

The simulation knows neither pods that will come nor operators who end pods by hand, so its range may be too narrow or
too wide. Each end of a range has a factor, which tracks a quantile of wait / forecast (quantile tracking: Angelopoulos,
Candès and Tibshirani, *Conformal PID control for time series prediction*, 2023): after a pod that waited longer it
grows, else it shrinks, in such steps that in the long run the given share of pods starts in time, whatever the error
of the simulation.

Rules:

- A wait is compared with the forecast as the factor corrects it now, not as it was published. Where pods come in
  bursts, hundreds of forecasts are open when the first is found wrong; each of the others would move the factor again.
- The first steps are large, so that a factor that begins at 1 is soon near its value. Factors are bounded: where the
  simulation errs by more, the reason is a change of what runs, which the next leases show.
- The first forecast of each waiting pod is compared with its start. A pod that still waits when its range is over
  counts as late at that moment: else the late ones would be counted last. Each end of each forecast counts once.

**Blend.** Each end of a range has one weight for the past waits. After each start the pinball losses of both forecasts
are compared, and the weight moves by exponentiated gradient with a fixed share (Herbster and Warmuth, *Tracking the
best expert*, 1998): the worse forecast keeps about a tenth, so the blend follows when it becomes the better one. A loss
counts as its part of both losses. So a wait of days moves the weights no more than one of minutes.

The middle is mixed in logarithms: a tenth of a forecast that is 50 times too late makes it half as late again, not six
times. The late end is mixed in seconds, as it has to hold: with logarithms more pods start after it.
"""

import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Annotated

import msgspec

from tessera.api.names import PodUid
from tessera.forecast.past_times import EVERY, note_use

#: Keys with factors of their own, two for each size of pods; others take the correction of all.
CALIBRATED_SIZES = 128
#: Pods whose first forecast is kept until they start: a few hundred starts correct as well as all.
_FORECASTS_KEPT = 5_000

#: Least change of the logarithm of a factor after one start, that after the first, and the largest logarithm.
_STEP, _FIRST_STEP, _MOST = 0.05, 0.3, 1.5
#: Starts of a size until its own factors count, and beyond which no more are counted.
_LEAST_STARTS, _MOST_STARTS = 20, 10**9
#: Shares of the starts that come before the two ends of a blended range.
_SHARES = (0.5, 0.9)
#: Speed of the weights, and the part that is shared out evenly after each start.
_SPEED, _EVEN = 0.1, 0.02

_Weight = Annotated[float, msgspec.Meta(ge=0, le=1)]
#: The two ends of a range, in seconds.
Range = tuple[float, float]


class End(IntEnum):
    """An end of a range: the median, and the ninth decile."""

    MIDDLE = 0
    LATE = 1


#: Shares of the starts at which the two ends aim. In back-tests fewer start before the last, mostly by 1 to 7 of 100: a
#: factor learns of a burst when pods of it have started.
AIMS = {End.MIDDLE: 0.5, End.LATE: 0.95}


class Factors(msgspec.Struct, array_like=True):
    """The factors of the two ends of a range, for pods of one size.

    Attributes:
        middle: logarithm of the factor of the median.
        late: logarithm of the factor of the ninth decile.
        starts: number of starts that they rest on.
    """

    middle: float = 0.0
    late: float = 0.0
    starts: int = 0

    def correct(self, end: End, seconds: float) -> float:
        """Returns a corrected end of a range."""
        return seconds * math.exp(self.late if end is End.LATE else self.middle)

    def note(self, end: End, *, late: bool) -> None:
        """Takes in a start before or after an end of its range, as corrected now."""
        step = max(_STEP, _FIRST_STEP / math.sqrt(1 + self.starts)) * (late - (1 - AIMS[end]))
        if end is End.LATE:
            self.late = _bound(self.late + step)
            self.starts += 1
        else:
            self.middle = _bound(self.middle + step)


class Calibration:
    """The factors by size. Small pods run past large ones, so sizes err in different directions.

    A size with few starts takes the factors of all.

    Args:
        by_size: factors that were kept.
        brought_by: by size, the namespace that brought it, as kept.

    Attributes:
        by_size: by profiles; the size that started last at the end. :data:`EVERY` has those of all.
        brought_by: by size of these, the namespace that brought it; of more sizes than are kept, the namespace with
            the most loses one (:mod:`tessera.forecast.past_times`).
    """

    def __init__(
        self, by_size: Mapping[str, Factors] | None = None, brought_by: Mapping[str, str] | None = None
    ) -> None:
        self.by_size: OrderedDict[str, Factors] = OrderedDict(
            (size, Factors(_bound(each.middle), _bound(each.late), min(max(0, each.starts), _MOST_STARTS)))
            for size, each in (by_size or {}).items()
        )
        self.brought_by = {size: by for size, by in (brought_by or {}).items() if size in self.by_size}

    def correct(self, size: str, p50: float, p90: float) -> tuple[float, float]:
        """Returns a corrected range, in seconds from now."""
        found = self.by_size.get(size)
        if found is None or found.starts < _LEAST_STARTS:
            found = self.by_size.get(EVERY, Factors())
        middle = found.correct(End.MIDDLE, p50)
        return middle, max(middle, found.correct(End.LATE, p90))

    def is_late(self, key: str, end: End, wait: float, forecast: float) -> bool:
        """True if a wait is longer than the forecast of the simulation as it would be corrected now.

        Args:
            key: the pod's size, or :data:`EVERY`; a start counts for both.
            end: the end of the range.
            wait: seconds from the forecast to the start, or to now.
            forecast: that end, as simulated.
        """
        return wait > self.by_size.get(key, self._initial()).correct(end, forecast)

    def note(self, key: str, end: End, *, late: bool, namespace: str) -> None:
        """Takes in that a namespace's pod started before or after an end of its range, as corrected now."""
        if key not in self.by_size:
            self.by_size[key] = self._initial()
        self.by_size[key].note(end, late=late)
        note_use(self.by_size, self.brought_by, key, namespace, CALIBRATED_SIZES)

    def _initial(self) -> Factors:
        """The factors of a size without starts."""
        every = self.by_size.get(EVERY, Factors())
        return Factors(every.middle, every.late)


def _bound(value: float) -> float:
    return min(_MOST, max(-_MOST, value)) if math.isfinite(value) else 0.0


class Blend(msgspec.Struct, array_like=True):
    """The weights of past waits in the two ends of a range, from 0 to 1; the rest is the simulation's."""

    middle: _Weight = 0.5
    late: _Weight = 0.5

    def mix(self, simulated: Range, waits: Range) -> Range:
        """Returns the blended range."""
        logarithm = (1 - self.middle) * math.log1p(simulated[0]) + self.middle * math.log1p(waits[0])
        p50, p90 = math.expm1(logarithm), (1 - self.late) * simulated[1] + self.late * waits[1]
        return p50, max(p50, p90)

    def note(self, wait: float, simulated: Range, waits: Range) -> None:
        """Takes in that a pod started, ``wait`` seconds after both had been forecast."""
        self.middle, self.late = (
            _move(weight, pinball(wait, one, share), pinball(wait, other, share))
            for weight, one, other, share in zip(self._weights, simulated, waits, _SHARES, strict=True)
        )

    @property
    def _weights(self) -> Sequence[float]:
        return self.middle, self.late


def pinball(wait: float, forecast: float, share: float) -> float:
    """The loss of one end of a range: least in the long run for the quantile of that share."""
    return (share if wait >= forecast else share - 1) * (wait - forecast)


def _move(weight: float, simulated: float, waits: float) -> float:
    both = simulated + waits
    if both <= 0:
        return weight
    one, other = (1 - weight) * math.exp(-_SPEED * simulated / both), weight * math.exp(-_SPEED * waits / both)
    return (1 - _EVEN) * other / (one + other) + _EVEN / 2


@dataclass(slots=True)
class FirstForecast:
    """The first forecast of a pod.

    Attributes:
        namespace: the pod's namespace.
        size: the pod's size.
        made: when it was made, seconds since 1970.
        seconds: the range of the simulation in seconds from then, not corrected.
        until: the end of the range that was published, seconds since 1970.
        blended: the ranges of the simulation and of past waits in seconds, if the range was made of both.
        open: the factors that it has not changed yet, by key and end.
        is_counted: it is known whether the pod started in time.
    """

    namespace: str
    size: str
    made: float
    seconds: Range
    until: float
    blended: tuple[Range, Range] | None = None
    open: set[tuple[str, End]] = field(default_factory=set)
    is_counted: bool = False


class Outcomes:
    """Forecasts whose outcome is not known yet.

    Args:
        calibration: takes the outcomes.
        blend: takes those of blended ranges.

    Attributes:
        late: pods that started after the end of their first range, or still wait; never decreases.
        counted: pods whose outcome is known; never decreases.
    """

    def __init__(self, calibration: Calibration, blend: Blend) -> None:
        self.late = 0
        self.counted = 0
        self._calibration = calibration
        self._blend = blend
        self._open: dict[PodUid, FirstForecast] = {}

    def note_forecast(self, uid: PodUid, first: FirstForecast) -> None:
        """Keeps the forecast of a pod, if it is its first."""
        if uid not in self._open and len(self._open) < _FORECASTS_KEPT:
            first.open = {(key, end) for key in (first.size, EVERY) for end in End}
            self._open[uid] = first

    def note_start(self, uid: PodUid, started: float) -> None:
        """Takes in the start of a pod; one without a forecast is no error."""
        first = self._open.pop(uid, None)
        if first is not None:
            self._count(first, started, waits=False)

    def note_waiting(self, waiting: AbstractSet[PodUid], started: Mapping[PodUid, float], now: float) -> None:
        """Takes in who waits now and who has slices; a pod that is neither was deleted, and says nothing.

        Args:
            waiting: the pods that wait.
            started: the pods that have slices, with the time of their start.
            now: seconds since 1970.
        """
        for uid, first in list(self._open.items()):
            if uid in waiting:
                self._count(first, now, waits=True)
                continue
            if uid in started:
                self._count(first, started[uid], waits=False)
            del self._open[uid]

    def _count(self, first: FirstForecast, now: float, *, waits: bool) -> None:
        if not first.is_counted and (now > first.until or not waits):
            first.is_counted = True
            self.counted += 1
            self.late += now > first.until
        if first.blended is not None and not waits:
            self._blend.note(now - first.made, *first.blended)
        for key, end in sorted(first.open):
            late = self._calibration.is_late(key, end, now - first.made, first.seconds[end])
            if not waits or (late and end is End.LATE):
                self._calibration.note(key, end, late=late, namespace=first.namespace)
                first.open.discard((key, end))
