"""An HTTP server that no client can exhaust: it has deadlines, and bounds on memory, connections and work.

Any pod in the cluster may connect, and kubelet and the API server must get through. So:

- a client that misses a deadline is cut off: for handshake and headers, a body, the next request of a connection;
- the number of connections is bounded, and so are the bytes of all requests, headers and bodies, that are not answered
  yet. At a bound, a new client is accepted, and the address that holds most loses one of its own: the connection that
  was silent longest, or the largest request. A new client of that very address is turned away at once if none of its
  connections was silent for a second: that costs a tenth of taking it in;
- work is done in pieces, a few before the loop looks for more, and one of each address before any gets two: taking a
  client in, and what TLS and HTTP make of one read. So one address with hundreds of clients delays its own alone;
- one request is answered at a time. A connection that sends more before the answer is closed after it;
- the server counts the connections that it cuts off, and logs them in one line a minute.

aiohttp handles HTTP, and asyncio TLS. This module accepts sockets itself, because aiohttp counts a connection only
after the handshake, and counts bytes itself, because aiohttp bounds a header and their number, but not the headers of
all connections. A loop of uvloop reads 32 times from a connection before it looks at the next one, so a process whose
port reads what strangers send runs on asyncio's own loop.
"""

import asyncio
import logging
import socket
import ssl
from abc import ABC, abstractmethod
from asyncio.sslproto import SSLProtocol
from collections import Counter
from operator import attrgetter
from typing import Any

import msgspec
from aiohttp import web

from tessera.serving.connection import BUFFER, Connection, Drops, MalformedRequests, Tls
from tessera.serving.fair_shares import FairQueue

#: Most connections that a port of the webhook holds. An API server has 200 changes in flight; each connection takes up
#: to 80 KiB for TLS.
PORT_CONNECTIONS = 400
#: Most bytes: requests that the webhook's port holds, headers and bodies of all connections together. Five of the
#: largest reviews at once, and hundreds of the usual 20 KiB; each costs up to three times its bytes.
PORT_BYTES = 16 * 2**20
#: Most headers of a request to the webhook. The API server sends about ten.
PORT_HEADERS = 32
#: Most bytes: the request line, or one header, of a request to the webhook. Those of the API server are far shorter; a
#: header is stored before its request is checked.
PORT_HEADER = 2_048
#: Most ms: the handshake of a connection to the webhook, and the headers of a request. The API server gives up then.
PORT_HEADER_TIME = 5_000
#: Most ms: the body of a request to the webhook. The API server gives up then.
PORT_BODY_TIME = 5_000
#: Most ms: the pause between two requests of a connection to the webhook. Longer than API servers pool idle connections
#: (90 s), so that they are the ones to close.
PORT_IDLE_TIME = 120_000

_log = logging.getLogger(__name__)

#: Pause in seconds when the process has no file descriptor left for a connection.
_NO_SOCKET = 0.1
#: Seconds of silence before a connection gives way to another one of its own address.
_SILENT = 1.0
#: Pieces of work before the loop looks for more; each takes up to a millisecond, for a TLS handshake.
_STEPS = 8
#: Bytes that a piece of a request counts for at least: a byte alone costs as much work and memory.
_PIECE = 1024
#: Why a connection ends whose handshake or headers did not come.
_LATE = "without a request in time"


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a port on connections, bytes and waiting times; times in milliseconds.

    Attributes:
        cancels: True if the answer to a request ends with its connection.
    """

    connections: int = PORT_CONNECTIONS
    headers: int = PORT_HEADERS
    header: int = PORT_HEADER
    cancels: bool = False
    bytes: int = PORT_BYTES
    header_time: int = PORT_HEADER_TIME
    body_time: int = PORT_BODY_TIME
    idle_time: int = PORT_IDLE_TIME


#: The limits of :mod:`tessera.limits`.
BOUNDS = Bounds()


class _Http(web.RequestHandler):
    """aiohttp's protocol, which knows its connection.

    API servers leave a connection open after each answer, and in a burst they make some that no request needs then.
    """

    __slots__ = ("_bounds", "_rests", "connection")

    def __init__(self, server: "_Server", connection: Connection, bounds: Bounds, **options: Any) -> None:
        super().__init__(server, **options)
        self.connection = connection
        self._bounds = bounds
        self._rests = False

    def rest(self) -> None:
        """Waits for the next request, or the first on a new connection."""
        self._rests = True
        self.connection.rest(self._bounds.idle_time)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Has a TLS connection wait for its first request: strangers without a handshake do not get here."""
        super().connection_made(transport)
        if transport.get_extra_info("sslcontext") is not None:
            self.rest()

    def data_received(self, data: bytes) -> None:
        """Gives a request that begins its time."""
        if self._rests:
            self._rests = False
            self.connection.set_deadline(self._bounds.header_time, _LATE)
        super().data_received(data)

    @property
    def has_more(self) -> bool:
        """Whether more requests came before the answer to this one."""
        return bool(self._messages)


class _Server(web.Server):
    """aiohttp's server."""

    def __init__(self, port: "ConnectionPort", drops: Drops, bounds: Bounds) -> None:
        self._log = logging.getLogger(f"{__name__}.http")
        self._filter = MalformedRequests(drops)
        self._log.addFilter(self._filter)
        super().__init__(port.handle, handler_cancellation=bounds.cancels)
        self._bounds = bounds
        self._options = {
            "access_log": None,
            "logger": self._log,
            "keepalive_timeout": 2 * bounds.idle_time / 1000,  # the deadlines here are shorter
            "lingering_time": 0,
            "read_bufsize": BUFFER,
            "max_headers": bounds.headers,
            "max_field_size": bounds.header,
            "max_line_size": bounds.header,
            "auto_decompress": False,
        }

    def protocol(self, connection: Connection) -> _Http:
        """Returns the protocol of a new connection."""
        return _Http(self, connection, self._bounds, loop=asyncio.get_running_loop(), **self._options)

    def close(self) -> None:
        """Removes the log filter."""
        self._log.removeFilter(self._filter)


class ConnectionPort(ABC):
    """Serves one listening socket; a subclass answers the requests.

    Args:
        name: the port's name in the log.
        context: for TLS; None for plain HTTP.
        bounds: the limits.

    Attributes:
        connections: number of open connections.
        unfinished_bytes: bytes of all requests that are not answered yet.
    """

    def __init__(self, name: str, context: ssl.SSLContext | None = None, bounds: Bounds = BOUNDS) -> None:
        self._bounds = bounds
        self._context = context
        self._loop = asyncio.get_running_loop()
        #: The open connections by address; of each address, the one that was silent longest first.
        self._held: dict[str, dict[Connection, None]] = {}
        #: The unfinished bytes of each address that has any.
        self._bytes: Counter[str] = Counter()
        self.connections = 0
        self.unfinished_bytes = 0
        #: The connections with work to do, by address; each stands here once for each piece.
        self._working: FairQueue[str, Connection] = FairQueue()
        self.drops = Drops(self._loop, name)
        self._server = _Server(self, self.drops, bounds)
        self.buffer = memoryview(bytearray(BUFFER))

    def protocol(self, connection: Connection) -> asyncio.Protocol | SSLProtocol:
        """Returns what handles the bytes of a new connection."""
        http = self._server.protocol(connection)
        return http if self._context is None else Tls(self._loop, http, self._context, None, server_side=True)  # type: ignore[arg-type]

    def holds(self, connection: Connection) -> bool:
        """Returns whether this connection counts still."""
        return connection in self._held.get(connection.address, ())

    def take(self, connection: Connection, count: int) -> bool:
        """Counts bytes that came; their work is done in the turn of their address. False if they cut it off."""
        count = max(count, _PIECE)
        connection.unfinished_bytes += count
        self._bytes[connection.address] += count
        self.unfinished_bytes += count
        if self.unfinished_bytes > self._bounds.bytes:
            self._largest_request().cut_off("beyond the bytes of all")
        if not self.holds(connection):
            return False
        self._queue(connection)
        return True

    def _queue(self, connection: Connection) -> None:
        if not self._working:
            self._loop.call_soon(self._work)
        self._working.add(connection.address, connection)

    def _work(self) -> None:
        """Does some work, then lets the loop look for more: one piece of each address after the other."""
        try:
            for connection in self._working.take(_STEPS):
                try:
                    connection.work()
                except BaseException:
                    connection.close()
                    raise
        finally:
            if self._working:
                self._loop.call_soon(self._work)

    async def serve(self, listener: socket.socket) -> None:
        """Accepts until cancelled; closes the socket."""
        self._loop.add_reader(listener, self._accept_all, listener)
        try:
            await self._loop.create_future()
        finally:
            self._loop.remove_reader(listener)
            listener.close()
            for connection in [each for held in self._held.values() for each in held]:
                connection.close()
            self._server.close()
            self.drops.close()

    def _accept_all(self, listener: socket.socket) -> None:
        """Accepts all who wait: the kernel knows no turns, so the one who is last in its queue may be kubelet."""
        while True:
            try:
                sock, address = listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                self.drops.add(f"not accepted ({error.strerror})")
                self._loop.remove_reader(listener)
                self._loop.call_later(_NO_SOCKET, self._accept_again, listener)
                return
            self._accept(sock, str(address[0]))

    def _accept_again(self, listener: socket.socket) -> None:
        if listener.fileno() >= 0:
            self._loop.add_reader(listener, self._accept_all, listener)

    def forget(self, connection: Connection) -> None:
        """Removes a connection from the count; a second call is no error."""
        held = self._held.get(connection.address, {})
        if connection in held:
            self.connections -= 1
            del held[connection]
            if not held:
                del self._held[connection.address]
        self.release(connection)

    def note_progress(self, connection: Connection) -> None:
        """Notes that a connection is the one of its address that was silent for the shortest time."""
        held = self._held.get(connection.address, {})
        if connection in held:
            del held[connection]
            held[connection] = None

    def release(self, connection: Connection) -> None:
        """Forgets the bytes that a connection holds."""
        self.unfinished_bytes -= connection.unfinished_bytes
        self._bytes[connection.address] -= connection.unfinished_bytes
        if not self._bytes[connection.address]:
            del self._bytes[connection.address]
        connection.unfinished_bytes = 0

    def _accept(self, sock: socket.socket, address: str) -> None:
        if self.connections >= self._bounds.connections:
            greediest = max(self._held, key=lambda each: len(self._held[each]))
            silent_longest = next(iter(self._held[greediest]))
            if greediest == address and self._loop.time() - silent_longest.silent_since < _SILENT:
                sock.close()
                self.drops.add("beyond the connections of all")
                return
            silent_longest.cut_off("beyond the connections of all")
        sock.setblocking(False)
        connection = Connection(self, sock, address)
        self._held.setdefault(address, {})[connection] = None
        self.connections += 1
        connection.set_deadline(self._bounds.header_time, _LATE)
        self._queue(connection)

    @abstractmethod
    async def respond(self, request: web.BaseRequest, connection: Connection) -> web.StreamResponse:
        """The answer to a request; it sets the deadlines of its connection until it returns.

        Raises:
            ConnectionError: the client is gone.
        """

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answers one request."""
        protocol = request.protocol
        assert isinstance(protocol, _Http)
        connection = protocol.connection
        if not self.holds(connection):
            raise ConnectionResetError  # cut off between two steps of the loop
        try:
            response = await self.respond(request, connection)
        finally:
            self.release(connection)
        if protocol.has_more:  # no client that we know sends them; they would take turns from other addresses
            response.force_close()
        protocol.rest()
        return response

    def _largest_request(self) -> Connection:
        """Returns the connection with the largest request of the address that holds most bytes."""
        held = self._held[max(self._bytes, key=lambda each: self._bytes[each])]
        return max(held, key=attrgetter("unfinished_bytes"))
