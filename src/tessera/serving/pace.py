"""A bound on how often something is done: so many at once, then so many a second. Pure; the time is given."""


class Pace:
    """Allows a number of actions a second, and as many at once after a pause of a second.

    Args:
        rate: actions a second.
    """

    def __init__(self, rate: int) -> None:
        self._rate = float(rate)
        #: Actions that may be done at :attr:`_at`; never more than the rate.
        self._left = float(rate)
        self._at = 0.0

    def take(self, now: float, *, spare: float = 0.0) -> bool:
        """Whether one more action may be done at this time, and ``spare`` are left then; counts it if so."""
        self._left = min(self._rate, self._left + max(0.0, now - self._at) * self._rate)
        self._at = now
        if self._left < 1.0 + spare:
            return False
        self._left -= 1.0
        return True
