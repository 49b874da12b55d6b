"""How long pods of each size waited, and what that says of one that waits now.

A second forecast beside the simulation, which knows neither pods that will come nor reservations that will move. What
it says is conditional, as for leases (:mod:`tessera.forecast.survival`): of the pods that waited longer than this one
has, and with those that still wait counted up to now. Without the latter a jam would show once it is over.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping

from tessera.forecast.crowding import note_use
from tessera.forecast.survival import HUNDRED_YEARS, SurvivalCurve
from tessera.limits.forecast import WAIT_SAMPLES, WAIT_SIZES

#: Least longer waits that say something.
LEAST_LONGER_WAITS = 5


class WaitHistory:
    """The last waits of each size, of pods that had to wait for room.

    Args:
        by_size: waits that were kept.
        brought_by: by size, the namespace that brought it, as kept.

    Attributes:
        by_size: by profiles, seconds from creation to start, the oldest first; the size that started last at the end.
        brought_by: by size of these, the namespace that brought it; of more sizes than are kept, the namespace with
            the most loses one (:mod:`tessera.forecast.crowding`).
    """

    def __init__(
        self, by_size: Iterable[tuple[str, Iterable[int]]] = (), brought_by: Mapping[str, str] | None = None
    ) -> None:
        self.by_size: OrderedDict[str, deque[int]] = OrderedDict(
            (size, deque(seconds, maxlen=WAIT_SAMPLES)) for size, seconds in by_size
        )
        self.brought_by = {size: by for size, by in (brought_by or {}).items() if size in self.by_size}

    def add(self, size: str, seconds: float, namespace: str) -> None:
        """Takes in the start of a namespace's pod that had to wait; an impossible wait counts nothing."""
        if not 0 <= seconds <= HUNDRED_YEARS:
            return
        self.by_size.setdefault(size, deque(maxlen=WAIT_SAMPLES)).append(round(seconds))
        note_use(self.by_size, self.brought_by, size, namespace, WAIT_SIZES)

    def curve(self, size: str, waiting: Iterable[float]) -> SurvivalCurve:
        """Returns the curve of the waits of a size.

        Args:
            size: the profiles.
            waiting: seconds that pods of this size have waited and still wait.
        """
        past = ((0.0, float(each), True) for each in self.by_size.get(size, ()))
        return SurvivalCurve((*past, *((0.0, each, False) for each in waiting)))
