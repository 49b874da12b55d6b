"""Corrects forecasts by how the earlier ones came out.

The simulation knows neither pods that will come nor operators who end pods by hand, so its range may be too narrow or
too wide. The correction is adaptive conformal inference (Gibbs and Candès, 2021) on the logarithm of the wait: after a
pod started later than forecast the factor grows, else it shrinks, in such steps that in the long run the given share of
pods starts in time, whatever the error of the simulation.
"""

import math

#: Shares of the starts that should come before the two ends of a range.
MIDDLE, LATE = 0.5, 0.9
#: Change of the logarithm of a factor after one start, and the largest logarithm.
_STEP, _MOST = 0.1, 3.0


class Calibration:
    """The factors of the two ends of a range.

    Attributes:
        middle: logarithm of the factor of the median.
        late: logarithm of the factor of the ninth decile.
    """

    def __init__(self, middle: float = 0.0, late: float = 0.0) -> None:
        self.middle = _bound(middle)
        self.late = _bound(late)

    def correct(self, p50: float, p90: float) -> tuple[float, float]:
        """Returns a corrected range, in seconds from now."""
        middle = p50 * math.exp(self.middle)
        return middle, max(middle, p90 * math.exp(self.late))

    def note_start(self, wait: float, p50: float, p90: float) -> None:
        """Takes in a start: the pod waited so many seconds after a forecast that was corrected to this range."""
        self.middle = _bound(self.middle + _STEP * ((wait > p50) - (1 - MIDDLE)))
        self.late = _bound(self.late + _STEP * ((wait > p90) - (1 - LATE)))


def _bound(value: float) -> float:
    return min(_MOST, max(-_MOST, value)) if math.isfinite(value) else 0.0
