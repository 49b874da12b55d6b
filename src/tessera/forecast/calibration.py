"""Corrects forecasts by how the earlier ones came out.

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
"""

import math
from collections import OrderedDict
from collections.abc import Mapping
from enum import IntEnum

import msgspec

from tessera.forecast.crowding import EVERY, note_use
from tessera.limits.forecast import CALIBRATED_SIZES

#: Least change of the logarithm of a factor after one start, that after the first, and the largest logarithm.
_STEP, _FIRST_STEP, _MOST = 0.05, 0.3, 1.5
#: Starts of a size until its own factors count, and beyond which no more are counted.
_LEAST_STARTS, _MOST_STARTS = 20, 10**9
#: The key of all sizes together.
EVERY_SIZE = EVERY


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
        by_size: by profiles; the size that started last at the end. :data:`EVERY_SIZE` has those of all.
        brought_by: by size of these, the namespace that brought it; of more sizes than are kept, the namespace with
            the most loses one (:mod:`tessera.forecast.crowding`).
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
            found = self.by_size.get(EVERY_SIZE, Factors())
        middle = found.correct(End.MIDDLE, p50)
        return middle, max(middle, found.correct(End.LATE, p90))

    def is_late(self, key: str, end: End, wait: float, forecast: float) -> bool:
        """True if a wait is longer than the forecast of the simulation as it would be corrected now.

        Args:
            key: the pod's size, or :data:`EVERY_SIZE`; a start counts for both.
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
        every = self.by_size.get(EVERY_SIZE, Factors())
        return Factors(every.middle, every.late)


def _bound(value: float) -> float:
    return min(_MOST, max(-_MOST, value)) if math.isfinite(value) else 0.0
