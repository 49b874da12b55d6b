"""Corrects forecasts by how the earlier ones came out.

The simulation knows neither pods that will come nor operators who end pods by hand, so its range may be too narrow or
too wide. The correction is adaptive conformal inference (Gibbs and Candès, 2021) on the logarithm of the wait: after a
pod started later than forecast the factor grows, else it shrinks, in such steps that in the long run the given share of
pods starts in time, whatever the error of the simulation.

A second expert knows only the last waits of pods of the same size. Where demand comes in bursts it can be better: the
range comes from the expert that had the smaller pinball loss of late.
"""

import math
from collections import OrderedDict
from collections.abc import Mapping

import msgspec

from tessera.forecast.survival import quantile
from tessera.limits.forecast import CALIBRATED_SIZES, RECENT_WAITS

#: Shares of the starts that should come before the two ends of a range.
MIDDLE, LATE = 0.5, 0.9
#: Change of the logarithm of a factor after one start, and the largest logarithm.
_STEP, _MOST = 0.1, 3.0
#: Weight of the last start in a loss, waits that make a range, and the longest wait that is kept.
_FADE, _LEAST_WAITS, _LONGEST = 0.05, 10, 1e9
#: Begins the key of the second expert's factors of a size.
_RECENT = "~"
#: Starts of a size until its own factors count.
_LEAST_STARTS = 20
#: The key of all sizes together.
EVERY_SIZE = ""
#: The key of forecasts that rest on deadlines: they err by other pods that go first, and not by the lives of pods.
BY_DEADLINE = "(deadline)"


class Factors(msgspec.Struct, array_like=True):
    """The factors of the two ends of a range, for pods of one size.

    Attributes:
        middle: logarithm of the factor of the median.
        late: logarithm of the factor of the ninth decile.
        starts: number of starts that they rest on.
        loss: mean pinball loss of the corrected ranges in seconds, the last starts count most.
        waits: the last waits from a first forecast to the start, in seconds; only of the second expert.
    """

    middle: float = 0.0
    late: float = 0.0
    starts: int = 0
    loss: float = 0.0
    waits: list[int] = []

    def note_start(self, wait: float, p50: float, p90: float) -> None:
        """Takes in a start."""
        self.middle = _bound(self.middle + _STEP * ((wait > p50) - (1 - MIDDLE)))
        self.late = _bound(self.late + _STEP * ((wait > p90) - (1 - LATE)))
        loss = _pinball(wait, p50, MIDDLE) + _pinball(wait, p90, LATE)
        self.loss = loss if not self.starts else (1 - _FADE) * self.loss + _FADE * loss
        self.starts += 1

    def add_wait(self, wait: float) -> None:
        """Takes in a wait."""
        self.waits = [*self.waits, round(min(max(0.0, wait), _LONGEST))][-RECENT_WAITS:]


class Calibration:
    """The factors by size. Small pods run past large ones, so sizes err in different directions.

    A size with few starts takes the factors of all.

    Args:
        by_size: factors that were kept.

    Attributes:
        by_size: by profiles; the size that started last at the end. :data:`EVERY_SIZE` has those of all.
    """

    def __init__(self, by_size: Mapping[str, Factors] | None = None) -> None:
        self.by_size: OrderedDict[str, Factors] = OrderedDict()
        for size, each in (by_size or {}).items():
            loss = max(0.0, each.loss) if math.isfinite(each.loss) else 0.0
            self.by_size[size] = Factors(
                _bound(each.middle), _bound(each.late), max(0, each.starts), loss, each.waits[-RECENT_WAITS:]
            )

    def correct(self, size: str, p50: float, p90: float) -> tuple[float, float]:
        """Returns a corrected range, in seconds from now."""
        found = self.by_size.get(size)
        if size == BY_DEADLINE:
            found = found or Factors()
        elif found is None or found.starts < _LEAST_STARTS:
            found = self.by_size.get(EVERY_SIZE, Factors())
        middle = p50 * math.exp(found.middle)
        return middle, max(middle, p90 * math.exp(found.late))

    def recent(self, size: str) -> tuple[float, float] | None:
        """Returns the range of the last waits of pods of a size, corrected; None while too few are known."""
        found = self.by_size.get(_RECENT + size)
        if found is None or len(found.waits) < _LEAST_WAITS:
            return None
        middle = quantile(found.waits, MIDDLE) * math.exp(found.middle)
        return middle, max(middle, quantile(found.waits, LATE) * math.exp(found.late))

    def prefers_recent(self, size: str) -> bool:
        """True if the last waits have forecast better than the simulation of late."""
        simulated, recent = self.by_size.get(size), self.by_size.get(_RECENT + size)
        if simulated is None or recent is None or min(simulated.starts, recent.starts) < _LEAST_STARTS:
            return False
        return recent.loss < simulated.loss

    def note_recent(self, size: str, wait: float, forecast: tuple[float, float] | None) -> None:
        """Takes in a start for the second expert: the wait, and what the last waits had forecast for it."""
        key = _RECENT + size
        found = self.by_size.setdefault(key, Factors())
        if forecast is not None:
            found.note_start(wait, *forecast)
        found.add_wait(wait)
        self.by_size.move_to_end(key)

    def note_start(self, size: str, wait: float, p50: float, p90: float) -> None:
        """Takes in a start: the pod waited so many seconds after a forecast that was corrected to this range."""
        for key in (size,) if size == BY_DEADLINE else (size, EVERY_SIZE):
            if key not in self.by_size:
                every = Factors() if key == BY_DEADLINE else self.by_size.get(EVERY_SIZE, Factors())
                self.by_size[key] = Factors(every.middle, every.late)
            self.by_size[key].note_start(wait, p50, p90)
            self.by_size.move_to_end(key)
        while len(self.by_size) > CALIBRATED_SIZES:
            self.by_size.popitem(last=False)


def _pinball(wait: float, forecast: float, share: float) -> float:
    return (share if wait >= forecast else share - 1) * (wait - forecast)


def _bound(value: float) -> float:
    return min(_MOST, max(-_MOST, value)) if math.isfinite(value) else 0.0
