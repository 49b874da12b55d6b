"""Forecasts from the rate of starts, where too little is known of the leases.

If pods with the same slices start independently of each other at a rate, the time until the k-th start has a Gamma
distribution; its quantiles are those of Wilson and Hilferty (1931), good to some per cent.
"""

from collections import Counter, deque

#: Starts that are counted, almost three in each second.
RATE_STARTS = 10_000
#: Seconds over which starts are counted.
WINDOW = 3600.0
#: Starts in the window that make a rate.
LEAST_STARTS = 3
#: Quantiles 0.5 and 0.9 of the normal distribution.
_NORMAL = (0.0, 1.2816)


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
