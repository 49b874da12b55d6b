"""Compares the first forecast of each waiting pod with its start, and corrects later forecasts by it.

A pod that still waits when its range is over counts as late at that moment: else the late ones would be counted last.
"""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from tessera.api.names import PodUid
from tessera.forecast.calibration import BY_DEADLINE, Calibration
from tessera.limits.forecast import FORECASTS_KEPT


@dataclass(frozen=True, slots=True)
class FirstForecast:
    """The first forecast of a pod of a size, as it was published; seconds since 1970."""

    size: str
    made: float
    p50: float
    p90: float
    recent: tuple[float, float] | None


class Outcomes:
    """Forecasts whose outcome is not known yet.

    Args:
        calibration: takes the outcomes.

    Attributes:
        late: pods that started after the end of their first range, or still wait; never decreases.
        counted: pods whose outcome is known; never decreases.
    """

    def __init__(self, calibration: Calibration) -> None:
        self.late = 0
        self.counted = 0
        self._calibration = calibration
        self._open: dict[PodUid, FirstForecast] = {}
        #: Pods that were counted as late while they wait; they are not counted again.
        self._closed: set[PodUid] = set()

    def made(self, uid: PodUid, now: float) -> float:
        """Returns when the first forecast of a pod was made; now if it has none."""
        found = self._open.get(uid)
        return now if found is None else found.made

    def note_forecast(
        self, uid: PodUid, size: str, now: float, forecast: tuple[float, float], recent: tuple[float, float] | None
    ) -> None:
        """Keeps the forecast of a pod, if it is its first.

        Args:
            uid: the pod.
            size: its size.
            now: seconds since 1970.
            forecast: the range that was simulated, in seconds from now.
            recent: the range by the last waits; None if they are too few.
        """
        if uid in self._open or uid in self._closed or len(self._open) >= FORECASTS_KEPT:
            return
        self._open[uid] = FirstForecast(size, now, now + forecast[0], now + forecast[1], recent)

    def note_waiting(self, waiting: AbstractSet[PodUid], started: Mapping[PodUid, float], now: float) -> None:
        """Takes in who waits now and who has slices; a pod that is neither was deleted, and says nothing.

        Args:
            waiting: the pods that wait.
            started: the pods that have slices, with the time of their start.
            now: seconds since 1970.
        """
        self._closed &= waiting
        for uid, first in list(self._open.items()):
            if uid in waiting:
                if now > first.p90:
                    self._count(first, now)
                    del self._open[uid]
                    self._closed.add(uid)
                continue
            if uid in started:
                self._count(first, started[uid])
            del self._open[uid]

    def _count(self, first: FirstForecast, now: float) -> None:
        self.counted += 1
        self.late += now > first.p90
        p50, p90 = first.p50 - first.made, first.p90 - first.made
        self._calibration.note_start(first.size, now - first.made, p50, p90)
        if first.size != BY_DEADLINE:
            self._calibration.note_recent(first.size, now - first.made, first.recent)
