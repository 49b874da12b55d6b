"""Tessera's processes far from the API server: requests take their time, and watches show late what was written.

Other parts of the cluster are near it. So what a controller decides rests on what was there a moment ago, as on a real
cluster behind a load balancer. Over a bad network requests are lost, too, and answers of requests that were served.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec

from tessera.kube.client import Client
from tessera.kube.requests import Request, Response, Stream
from tessera_lab.apiserver.interfaces import UserInfo
from tessera_lab.apiserver.main.inprocess_transport import InProcessTransport
from tessera_lab.apiserver.main.server import ApiServer
from tessera_lab.cluster.cluster import SimulatedCluster


class Network(msgspec.Struct, frozen=True):
    """Latency and loss of a network.

    Attributes:
        trip: seconds that a request, or its answer, takes at most; watches lag up to twice as long. 0 for no network.
        lost: which part of them is lost.
    """

    trip: float = 0.0
    lost: float = 0.0


class _Late:
    """A watch that comes late, in its order."""

    def __init__(self, inner: Stream, lag: Callable[[], float]) -> None:
        self._inner, self._lag = inner, lag
        self.status, self.headers = inner.status, inner.headers

    async def read(self) -> bytes:
        return await self._inner.read()

    async def chunks(self) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        come: asyncio.Queue[tuple[float, bytes] | None] = asyncio.Queue()

        async def follow() -> None:
            try:
                async for chunk in self._inner.chunks():
                    come.put_nowait((loop.time() + self._lag(), chunk))
            finally:
                come.put_nowait(None)

        following = asyncio.create_task(follow())
        try:
            while (one := await come.get()) is not None:
                when, chunk = one
                await asyncio.sleep(max(0.0, when - loop.time()))
                yield chunk
        finally:
            following.cancel()


class _Distant(InProcessTransport):
    """The API server over a slow network."""

    def __init__(self, server: ApiServer, user: UserInfo, rng: random.Random, network: Network) -> None:
        super().__init__(server, user)
        self._rng, self._network = rng, network

    async def request(self, request: Request) -> Response:
        await self._travel()
        answer = await super().request(request)
        await self._travel()
        return answer

    async def _travel(self) -> None:
        await asyncio.sleep(self._some())
        if self._rng.random() < self._network.lost:
            raise ConnectionError("the connection broke (simulated)")

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[Stream]:
        async with super().stream(request) as found:
            yield _Late(found, lambda: 2 * self._some())

    def _some(self) -> float:
        return self._rng.uniform(0.0, self._network.trip)


def distant(network: Network) -> type[SimulatedCluster]:
    """A cluster with this network between Tessera and the API server."""

    class Distant(SimulatedCluster):
        def account_client(self, component: str, account: UserInfo) -> Client:
            transport = _Distant(self.server, account, self.rng(component), network)
            return Client(transport, field_manager=component, clock=self.clock)

    return Distant if network.trip else SimulatedCluster
