"""Compares the first forecast of each waiting pod with its start, and corrects later forecasts by it.

A pod that still waits when its range is over counts as late at that moment: else the late ones would be counted last.
Each end of each forecast counts once.
"""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from tessera.api.names import PodUid
from tessera.forecast.blend import Blend, Range
from tessera.forecast.calibration import EVERY_SIZE, Calibration, End
from tessera.limits.forecast import FORECASTS_KEPT


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
        if uid not in self._open and len(self._open) < FORECASTS_KEPT:
            first.open = {(key, end) for key in (first.size, EVERY_SIZE) for end in End}
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
