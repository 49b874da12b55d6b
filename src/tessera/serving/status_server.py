"""Serves a process's own pages: ``/healthz``, ``/readyz``, ``/metrics``, and pages of JSON.

Any pod of the cluster may connect to this port, and kubelet must get through. So the port is bounded
(:mod:`tessera.serving.bounded_port`), and it has a thread and a loop of its own, where no work of the process delays an
answer. Other rules:

- the probes are answered in that thread. ``/healthz`` fails once the loop of the process makes no progress for too
  long, since kubelet can help only then;
- the other pages are made on the loop of the process, which owns what they show: one at a time for each path, and all
  who ask within :data:`FRESH` share it, so scrapes cost the same however many clients there are;
- an address that asks too often waits, and its connection ends;
- pages that name pods have a guard (:mod:`tessera.access.reviewer`), which asks on the loop of the process. Probes
  are for everybody.
"""

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

from aiohttp import web

from tessera.clock import Clock, SystemClock
from tessera.serving.bounded_port import Bounds, ConnectionPort
from tessera.serving.connection import Connection
from tessera.serving.fair_shares import Pace
from tessera.status_pages import (
    METRICS_PATH,
    NO_DOCUMENTS,
    TEXT,
    Guard,
    JsonDocuments,
    OnListening,
    Page,
    ProcessStatus,
    status_page,
    unavailable,
)

#: Most connections to the port of health and metrics of a process. Kubelet, two Prometheus servers and a few readers of
#: `/usage` or `/queue` need ten.
STATUS_CONNECTIONS = 64
#: Most bytes: requests that the port of health and metrics holds, all connections together. 64 requests of 32 KiB;
#: Prometheus sends less than 1 KiB.
STATUS_BYTES = 2 * 2**20
#: Most bytes: the request line, or one header, of a request to the port of health and metrics. A token of a service
#: account with the longest names has 2,500.
STATUS_HEADER = 4_096
#: Most ms: the pause between two requests of a connection to the port of health and metrics. Longer than the usual
#: interval of scrapes, 15 to 60 s.
STATUS_IDLE_TIME = 65_000
#: Most requests of one address to the port of health and metrics; those beyond wait a second and get 429. A probe every
#: 10 s, a scrape every 15 s, and people; each answer costs CPU time of the process.
STATUS_REQUESTS = 20
#: Most ms: time without progress of a process after which its `/healthz` fails. No review and no decision takes a
#: twentieth of it; kubelet then restarts the process.
STANDSTILL = 30_000

#: The limits of the port; see :mod:`tessera.limits`.
BOUNDS = Bounds(connections=STATUS_CONNECTIONS, bytes=STATUS_BYTES, header=STATUS_HEADER, idle_time=STATUS_IDLE_TIME)
#: Seconds between two heartbeats.
_BEAT = 1.0
#: Seconds for which a page is given to all who ask; a scrape comes every 15 s or less often.
FRESH = 0.25
#: Seconds that an address waits which asks too often.
_WAIT = 1.0
#: Seconds until a page must be made; Prometheus gives up after 10 s by default.
_MAKING_TIME = 10.0
_PROBES = frozenset({"/healthz", "/readyz"})
_TO_STRANGERS = (
    " names pods, so it needs a token: use the command tessera in the version of this process, or send"
    " Authorization: Bearer TOKEN of an account that may get this path (docs/page-access.md)\n"
)

T = TypeVar("T")


async def serve_status(
    process: ProcessStatus,
    port: int,
    *,
    address: str | None = None,
    on_listening: OnListening | None = None,
    documents: JsonDocuments = NO_DOCUMENTS,
    guard: Guard | None = None,
) -> None:
    """Serves the pages until cancelled.

    Args:
        process: the process to show; another thread calls its ``unready_reason``.
        port: TCP port; 0 picks a free one.
        address: address to listen on; None for all, IPv6 too.
        on_listening: called once the port is open.
        documents: further pages of JSON, by path; they need a guard.
        guard: of metrics and documents; None for a process whose metrics name nobody.

    Raises:
        OSError: the port is taken.
        ValueError: there are documents and no guard.
    """
    if documents and guard is None:
        raise ValueError(f"pages {', '.join(sorted(documents))}: pages of JSON name pods, so they need a guard")
    listener = listening_socket(address, port)
    opened = listener.getsockname()[:2]
    heartbeat = LoopHeartbeat(SystemClock())
    pages = _Pages(process, documents, heartbeat, guard)

    def started() -> None:
        if on_listening is not None:
            on_listening(*opened)

    async with asyncio.TaskGroup() as group:
        group.create_task(heartbeat.run())
        group.create_task(_in_thread(lambda: StatusPort(pages).serve(listener), started))


class LoopHeartbeat:
    """Shows other threads that a loop makes progress.

    Args:
        clock: gives the time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last = clock.monotonic()

    async def run(self) -> None:
        """Beats on the watched loop until cancelled."""
        while True:
            self._last = self._clock.monotonic()
            await self._clock.sleep(_BEAT)

    @property
    def missing(self) -> str:
        """Reason that the loop counts as stuck; empty if it makes progress."""
        silent = self._clock.monotonic() - self._last
        return f"this process has stood still for {silent:.0f} s" if silent * 1000 > STANDSTILL else ""


class _Pages:
    """The pages of a process, made on the loop that is running now.

    Args:
        process: the process to show.
        documents: its pages of JSON, by path.
        heartbeat: of the loop.
        guard: of the pages that the process's loop makes; None to show them to everybody.
    """

    def __init__(
        self, process: ProcessStatus, documents: JsonDocuments, heartbeat: LoopHeartbeat, guard: Guard | None
    ) -> None:
        self._process, self._documents, self._heartbeat, self._guard = process, documents, heartbeat, guard
        self._loop = asyncio.get_running_loop()
        self._paths = frozenset({METRICS_PATH, *documents})

    def probe(self, path: str) -> Page | None:
        """The page of a path that any thread may make; None if the process's loop must make it."""
        if path in self._paths:
            return None
        stuck = self._heartbeat.missing if path in _PROBES else ""
        return unavailable(stuck) if stuck else status_page(path, self._process, self._documents)

    async def refuse(self, path: str, headers: Mapping[str, str], address: str) -> Page | None:
        """Returns the refusal that a reader gets, or None if it may read the page. Called in another loop."""
        if self._guard is None or not self._guard.guards(path):
            return None
        token = self._guard.token(headers)
        if not token:
            return Page(401, TEXT, f"{path}{_TO_STRANGERS}".encode())
        try:
            return await self._on_own_loop(self._guard.refuse(path, token, address))
        except TimeoutError:
            return unavailable("no time to check this token: this process is busy, or the API server does not answer")

    async def make(self, path: str) -> Page:
        """The page of another path; called in another loop."""
        try:
            return await self._on_own_loop(self._make(path))
        except TimeoutError:
            return unavailable(f"{path} was not made within {_MAKING_TIME:.0f} s: this process is busy")

    async def _on_own_loop(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of work on the process's loop.

        Raises:
            TimeoutError: it took too long.
        """
        async with asyncio.timeout(_MAKING_TIME):
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    async def _make(self, path: str) -> Page:
        return status_page(path, self._process, self._documents)


class StatusPort(ConnectionPort):
    """The port of the pages.

    Args:
        pages: the pages.
        bounds: the limits.
    """

    def __init__(self, pages: _Pages, bounds: Bounds = BOUNDS) -> None:
        super().__init__("status", None, bounds)
        self._pages = pages
        #: The last making of each page, with the loop's time at which it began; of the paths that there are.
        self._made: dict[str, tuple[float, asyncio.Task[Page]]] = {}
        #: The requests of each address that has a connection.
        self._paces: dict[str, Pace] = {}

    async def respond(self, request: web.BaseRequest, connection: Connection) -> web.StreamResponse:
        """See :meth:`ConnectionPort.respond`. A body is not read."""
        connection.set_deadline(self._bounds.body_time + round(_MAKING_TIME * 1000), "while its answer was made")
        if not self._pace(connection.address).take(self._loop.time()):
            await asyncio.sleep(_WAIT)
            return self._response(Page(429, TEXT, b"this address asks too often\n"), ends=True)
        if request.method not in {"GET", "HEAD"}:
            return self._response(Page(405, TEXT, b"pages are read by GET\n"), ends=True)
        page = self._pages.probe(request.path)
        if page is None:
            page = await self._pages.refuse(request.path, request.headers, connection.address)
        if page is None:
            page = await asyncio.shield(self._shared(request.path))
        return self._response(page, ends=request.body_exists)

    def _shared(self, path: str) -> "asyncio.Task[Page]":
        now = self._loop.time()
        began, making = self._made.get(path, (now - FRESH, None))
        if making is None or (making.done() and now - began >= FRESH):
            making = self._loop.create_task(self._pages.make(path))
            self._made[path] = now, making
        return making

    def _pace(self, address: str) -> Pace:
        if address not in self._paces:
            self._paces = {each: pace for each, pace in self._paces.items() if each in self._held}
            self._paces[address] = Pace(STATUS_REQUESTS)
        return self._paces[address]

    @staticmethod
    def _response(page: Page, *, ends: bool) -> web.Response:
        response = web.Response(status=page.status, body=page.body, headers={"content-type": page.content_type})
        if page.status == 401:
            response.headers["www-authenticate"] = "Bearer"
        if ends:
            response.force_close()
        return response


async def _in_thread(serve: Callable[[], Coroutine[Any, Any, None]], on_started: Callable[[], None]) -> None:
    """Runs a coroutine in a loop and a thread of its own, until it ends or this call is cancelled."""
    started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[None]]] = Future()
    ended: Future[None] = Future()

    async def run_task() -> None:
        serving = asyncio.get_running_loop().create_task(serve())
        started.set_result((asyncio.get_running_loop(), serving))
        await asyncio.wait({serving})
        if not serving.cancelled():
            serving.result()

    def run() -> None:
        try:
            asyncio.run(run_task())  # noqa: TID251 - a thread gets no signals
        except BaseException as error:
            ended.set_exception(error)
            raise
        ended.set_result(None)

    for each in (started, ended):
        each.set_running_or_notify_cancel()  # the caller may be cancelled; the thread goes on until it is stopped
    thread = threading.Thread(target=run, name="status", daemon=True)
    thread.start()
    loop, serving = await asyncio.wrap_future(started)
    try:
        on_started()
        await asyncio.wrap_future(ended)
    finally:
        if thread.is_alive():
            loop.call_soon_threadsafe(serving.cancel)
            thread.join()


#: Clients that the kernel keeps until they are accepted: its own limit (``net.core.somaxconn``) since Linux 5.4. One
#: that finds no place tries again after a second, so a probe beside 2,000 new connections took that long with 1,024.
_QUEUE = 4096
#: Bytes that the kernel keeps of a connection until they are read.
_RECEIVED = 32 * 1024


def listening_socket(address: str | None, port: int) -> socket.socket:
    """Returns a listening socket; without an address, on all addresses, IPv6 too."""
    if address is None and socket.has_dualstack_ipv6():
        listener = socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=_QUEUE)
    else:
        family = socket.AF_INET6 if ":" in (address or "") else socket.AF_INET
        listener = socket.create_server((address or "", port), family=family, backlog=_QUEUE)
    # Accepted sockets inherit it: what came and is not read yet is memory that nobody counts.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVED)
    listener.setblocking(False)
    return listener
