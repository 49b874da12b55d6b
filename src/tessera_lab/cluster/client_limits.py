"""Client-side limits of the control plane's programs: a burst of requests, then a fixed rate.

kube-controller-manager sends 20 requests a second (burst 30), kube-scheduler 50 (burst 100), unless their flags say
otherwise; watches count once. So the claims of 200 deleted pods took 10 to 23 s on Kubernetes 1.36.2 until they were
gone. Here they take about 50 s: all controllers share one rate, and in Kubernetes each has its own.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from tessera.clock import Clock
from tessera.kube.requests import Request, Response, Stream, Transport

#: Requests a second and burst, by program (``--kube-api-qps``, ``--kube-api-burst``; ``clientConnection``).
LIMITS: Mapping[str, tuple[float, int]] = {
    "kube-controller-manager": (20.0, 30),
    "kube-scheduler": (50.0, 100),
}


class LimitedTransport:
    """Sends requests of one program at its rate.

    Args:
        inner: carries them.
        clock: its time.
        rate: requests a second.
        burst: requests at once, after a quiet while.
    """

    def __init__(self, inner: Transport, clock: Clock, rate: float, burst: int) -> None:
        self._inner = inner
        self._clock = clock
        self._rate = rate
        self._tokens = self._burst = float(burst)
        self._since = clock.monotonic()

    async def request(self, request: Request) -> Response:
        """See :class:`.Transport`."""
        await self._wait()
        return await self._inner.request(request)

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[Stream]:
        """See :class:`.Transport`."""
        await self._wait()
        async with self._inner.stream(request) as opened:
            yield opened

    async def close(self) -> None:
        """Closes the inner transport."""
        await self._inner.close()

    async def _wait(self) -> None:
        now = self._clock.monotonic()
        self._tokens = min(self._burst, self._tokens + (now - self._since) * self._rate) - 1
        self._since = now
        if self._tokens < 0:
            await self._clock.sleep(-self._tokens / self._rate)
