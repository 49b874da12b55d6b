"""A simulated server: takes connections and requests, and works on them as its declaration says.

Its connections are pairs of sockets in this process, so that HTTP is aiohttp's and buffers are the kernel's. Where pods
of the lab have addresses of this machine, it listens there too, for an agent that reads its metrics. Work takes time of
the node's clock. Requests wait for a place and for their turn; beyond a limit they are refused, as are bodies that are
too large.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from tessera.kube.client.requests import Request, Response
from tessera_lab.apiserver.interfaces import PodPeer
from tessera_lab.kubelet.servers.behaviour import HttpBehaviour
from tessera_lab.kubelet.servers.vllm import VllmApi
from tessera_lab.limits import LAB_SERVER, LAB_SERVER_BODY
from tessera_lab.simulation.virtual_time import CountedClock

#: Seconds for open requests to end with their server; aiohttp counts 0 as no bound.
_SHUTDOWN = 0.01
#: Header of each answer.
SIMULATED = {"server": "tessera-lab (simulated)"}


class SimulatedServer:
    """One server, from its container's start to its end.

    Args:
        behaviour: what it does.
        clock: the node's time; a lab on virtual time may skip the waits.

    Attributes:
        running: requests that are worked on.
        waiting: requests that wait for a place or their turn.
    """

    def __init__(self, behaviour: HttpBehaviour, clock: CountedClock) -> None:
        self._does = behaviour
        self._clock = clock
        self._places = asyncio.Semaphore(behaviour.concurrency)
        self._turn = 0.0
        self._api = VllmApi(behaviour.model) if behaviour.model else None
        self._http = web.Server(self._handle, access_log=None, handler_cancellation=True)
        self._listener: asyncio.Server | None = None
        self.running = 0
        self.waiting = 0

    async def connect(self) -> PodPeer:
        """Opens a connection to it."""
        own, other = socket.socketpair()
        await asyncio.get_running_loop().connect_accepted_socket(self._http, other)
        return await asyncio.open_connection(sock=own)

    async def listen(self, address: str) -> str:
        """Listens on its port of an address; returns why it cannot, empty if it does."""
        try:
            self._listener = await asyncio.get_running_loop().create_server(self._http, address, self._does.port)
        except OSError as error:
            return str(error)
        return ""

    async def close(self) -> None:
        """Ends all connections."""
        if self._listener is not None:
            self._listener.close()
        self._http.pre_shutdown()
        await self._http.shutdown(_SHUTDOWN)

    async def answer(self, request: Request) -> Response:
        """Answers a request once its work is done."""
        if self._api is not None and not self._api.is_work(request):
            return self._say(request)
        if self.waiting >= LAB_SERVER:
            text = f"simulated: {self.waiting} requests wait; {LAB_SERVER} are allowed\n"
            return Response(status=503, headers={**SIMULATED, "content-type": "text/plain"}, body=text.encode())
        async with self._place():
            if self._does.latency:
                await self._clock.sleep(self._does.latency)
            return self._say(request)

    @asynccontextmanager
    async def _place(self) -> AsyncIterator[None]:
        """Waits for the request's turn and a place, and holds it."""
        self.waiting += 1
        try:
            await self._wait_turn()
            await self._places.acquire()
        finally:
            self.waiting -= 1
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1
            self._places.release()

    async def _wait_turn(self) -> None:
        if not self._does.per_second:
            return
        now = self._clock.monotonic()
        turn = max(now, self._turn)
        self._turn = turn + 1 / self._does.per_second
        if turn > now:
            await self._clock.sleep(turn - now)

    def _say(self, request: Request) -> Response:
        if self._api is None:
            headers = {**SIMULATED, "content-type": self._does.content_type}
            return Response(status=self._does.status, headers=headers, body=self._does.answer.encode())
        said = self._api.answer(request, self._clock.now(), running=self.running, waiting=self.waiting)
        return Response(status=said.status, headers={**SIMULATED, **said.headers}, body=said.body)

    async def _handle(self, raw: web.BaseRequest) -> web.Response:
        body = bytearray()
        async for chunk in raw.content.iter_any():
            body += chunk
            if len(body) > LAB_SERVER_BODY:
                return web.Response(status=413, text=f"simulated: {LAB_SERVER_BODY} are allowed in a body\n")
        request = Request(
            method=raw.method,
            path=raw.rel_url.path,
            query=list(raw.rel_url.query.items()),
            headers={name.lower(): value for name, value in raw.headers.items()},
            body=bytes(body),
        )
        said = await self.answer(request)
        return web.Response(status=said.status, headers=said.headers, body=said.body)


class SimulatedServers:
    """The servers of one node's pods, by pod and port."""

    def __init__(self, clock: CountedClock) -> None:
        self._clock = clock
        self._servers: dict[tuple[str, int], SimulatedServer] = {}

    @asynccontextmanager
    async def running(
        self, uid: str, behaviour: HttpBehaviour | None, address: str, log: Callable[[str], None]
    ) -> AsyncIterator[None]:
        """Runs a server of a pod inside the block.

        Args:
            uid: the pod's UID.
            behaviour: what the server does; None for a pod without one.
            address: the address of this machine that the pod has; empty for none.
            log: adds a line to the container's log.
        """
        if behaviour is None:
            yield
            return
        server = self._servers[uid, behaviour.port] = SimulatedServer(behaviour, self._clock)
        log(f"simulated: a stand-in serves HTTP on port {behaviour.port}")
        try:
            if address and (why := await server.listen(address)):
                log(f"simulated: only kubectl port-forward and the API server's proxies reach it: {why}")
            yield
        finally:
            del self._servers[uid, behaviour.port]
            await server.close()

    def find(self, uid: str, port: int) -> SimulatedServer:
        """Returns the server at a port of a pod.

        Raises:
            LookupError: none runs there.
        """
        return self._servers[uid, port]
