"""Simulated waits that are sure to end, counted: while there are some, a lab on virtual time may leap."""

from tessera.clock import Clock


class CountedClock:
    """A clock that counts who sleeps on it; for simulated hardware, where each sleep is a call under way.

    Attributes:
        pending: sleeps under way.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.pending = 0

    def now(self) -> float:
        """See :meth:`.Clock.now`."""
        return self._clock.now()

    def monotonic(self) -> float:
        """See :meth:`.Clock.monotonic`."""
        return self._clock.monotonic()

    async def sleep(self, seconds: float) -> None:
        """See :meth:`.Clock.sleep`."""
        self.pending += 1
        try:
            await self._clock.sleep(seconds)
        finally:
            self.pending -= 1

    async def rest(self, seconds: float) -> None:
        """Sleeps without being counted: nothing comes of this wait by itself."""
        await self._clock.sleep(seconds)
