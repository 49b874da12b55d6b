"""Corrects forecasts by how the earlier ones came out.

The simulation knows neither pods that will come nor operators who end pods by hand, so its range may be too narrow or
too wide. The correction is adaptive conformal inference (Gibbs and Candès, 2021) on the logarithm of the wait: after a
pod started later than forecast the factor grows, else it shrinks, in such steps that in the long run the given share of
pods starts in time, whatever the error of the simulation.
"""

import math
from collections import OrderedDict
from collections.abc import Mapping

import msgspec

from tessera.limits.forecast import CALIBRATED_SIZES

#: Shares of the starts that should come before the two ends of a range.
MIDDLE, LATE = 0.5, 0.9
#: Change of the logarithm of a factor after one start, and the largest logarithm.
_STEP, _MOST = 0.1, 3.0
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
    """

    middle: float = 0.0
    late: float = 0.0
    starts: int = 0

    def note_start(self, wait: float, p50: float, p90: float) -> None:
        """Takes in a start."""
        self.middle = _bound(self.middle + _STEP * ((wait > p50) - (1 - MIDDLE)))
        self.late = _bound(self.late + _STEP * ((wait > p90) - (1 - LATE)))
        self.starts += 1


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
            self.by_size[size] = Factors(_bound(each.middle), _bound(each.late), max(0, each.starts))

    def correct(self, size: str, p50: float, p90: float) -> tuple[float, float]:
        """Returns a corrected range, in seconds from now."""
        found = self.by_size.get(size)
        if size == BY_DEADLINE:
            found = found or Factors()
        elif found is None or found.starts < _LEAST_STARTS:
            found = self.by_size.get(EVERY_SIZE, Factors())
        middle = p50 * math.exp(found.middle)
        return middle, max(middle, p90 * math.exp(found.late))

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


def _bound(value: float) -> float:
    return min(_MOST, max(-_MOST, value)) if math.isfinite(value) else 0.0
