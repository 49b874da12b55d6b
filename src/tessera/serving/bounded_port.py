"""An HTTP server that no client can exhaust: it has deadlines, and bounds on memory and connections.

Any pod in the cluster may connect, and the API server must get through. So:

- a client that misses a deadline is cut off: for handshake and headers, a body, the next request of a connection;
- the number of connections is bounded, and so are the bytes of all requests, headers and bodies, that are not answered
  yet. At a bound, a new client is accepted, and the address that holds most loses one of its own: the connection that
  was silent longest, or the largest request. A new client of that very address is turned away at once if none of its
  connections was silent for a second: that costs a tenth of taking it in;
- the server counts the connections that it cuts off, and logs them in one line a minute.

aiohttp handles HTTP. This module accepts sockets itself, because aiohttp counts a connection only after the handshake,
and counts bytes itself, because aiohttp bounds a header and their number, but not the headers of all connections.
"""

import asyncio
import logging
import socket
import ssl
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from tessera.limits.processes import (
    PORT_BODY_TIME,
    PORT_BYTES,
    PORT_CONNECTIONS,
    PORT_HEADER,
    PORT_HEADER_TIME,
    PORT_HEADERS,
    PORT_IDLE_TIME,
    REVIEW_BODY,
)
from tessera.status_pages import Page

_log = logging.getLogger(__name__)

#: Seconds between two log lines about connections that were cut off.
_REPORT = 60.0
#: Pause in seconds when the process has no file descriptor left for a connection.
_NO_SOCKET = 0.1
#: Seconds of silence before a connection gives way to another one of its own address.
_SILENT = 1.0
#: Clients taken from the queue before the loop does other work.
_IN_A_ROW = 32
#: Bytes that a connection buffers besides the counted ones.
_BUFFER = 16 * 1024

#: Returns the answer to a request, given as method, path and body.
Answer = Callable[[str, str, bytes], Page]


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


class Drops:
    """Counts cut-off connections and bodies, and logs at most one line a minute."""

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str) -> None:
        self._loop = loop
        self._name = name
        self._counts: Counter[str] = Counter()
        self._timer: asyncio.TimerHandle | None = None
        self._since = 0.0

    def add(self, why: str) -> None:
        """Counts one; logs the first after a quiet time at once."""
        self._counts[why] += 1
        if self._timer is None:
            self._report()

    def _report(self) -> None:
        self._timer = None
        if self._counts:
            counts = ", ".join(f"{count} {why}" for why, count in self._counts.most_common())
            _log.warning("%s: connections cut off: %s", self._name, counts)
            self._counts.clear()
            self._timer = self._loop.call_later(_REPORT, self._report)

    def close(self) -> None:
        """Logs the rest."""
        if self._timer is not None:
            self._timer.cancel()
        self._report()
        if self._timer is not None:
            self._timer.cancel()


class _Malformed(logging.Filter):
    """Counts each malformed or aborted request that aiohttp would log with a traceback."""

    def __init__(self, drops: Drops) -> None:
        super().__init__()
        self._drops = drops

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        match error:
            case HttpProcessingError():
                self._drops.add("with what is no HTTP")
            case ConnectionError():
                self._drops.add("gone before the body had come")
            case _:
                return True
        return False


class _Protocol(web.RequestHandler):
    """aiohttp's protocol, which also reports the bytes that it takes in."""

    __slots__ = ("_port",)

    def __init__(self, server: "_Server", port: "ConnectionPort", **options: Any) -> None:
        super().__init__(server, **options)
        self._port = port

    def data_received(self, data: bytes) -> None:
        if self._port.hold(self, len(data)):
            super().data_received(data)


class _Server(web.Server):
    """aiohttp's server, which also reports bytes and lost connections."""

    def __init__(self, port: "ConnectionPort", drops: Drops, bounds: Bounds) -> None:
        self._log = logging.getLogger(f"{__name__}.http")
        self._filter = _Malformed(drops)
        self._log.addFilter(self._filter)
        super().__init__(port.handle, handler_cancellation=bounds.cancels)
        self._options = {
            "access_log": None,
            "logger": self._log,
            "keepalive_timeout": 2 * bounds.idle_time / 1000,  # the deadlines here are shorter
            "lingering_time": 0,
            "read_bufsize": _BUFFER,
            "max_headers": bounds.headers,
            "max_field_size": bounds.header,
            "max_line_size": bounds.header,
            "auto_decompress": False,
        }
        self._port = port

    def __call__(self) -> web.RequestHandler:
        return _Protocol(self, self._port, loop=asyncio.get_running_loop(), **self._options)

    def close(self) -> None:
        """Removes the log filter."""
        self._log.removeFilter(self._filter)

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        super().connection_lost(handler, exc)
        self._port.connection_lost(handler)


class Connection:
    """One connection, from its acceptance on.

    Attributes:
        address: the client's address.
        unfinished_bytes: bytes of its request that is not answered yet.
        silent_since: the loop's time of its last progress.
    """

    def __init__(self, port: "ConnectionPort", address: str) -> None:
        self._port = port
        self.address = address
        self.unfinished_bytes = 0
        self.silent_since = 0.0
        self.task: asyncio.Task[None] | None = None
        self.protocol: web.RequestHandler | None = None
        self._timer: asyncio.TimerHandle | None = None

    def set_deadline(self, milliseconds: int, otherwise: str) -> None:
        """Sets the deadline of the next phase; at its end the connection is cut off with this reason."""
        loop = asyncio.get_running_loop()
        self.silent_since = loop.time()
        self._port.note_progress(self)
        self.clear_deadline()
        self._timer = loop.call_later(milliseconds / 1000, self.cut_off, otherwise)

    def clear_deadline(self) -> None:
        """Removes the deadline."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def cut_off(self, why: str) -> None:
        """Ends the connection at once."""
        self._port.drops.add(why)
        self.close()

    def close(self) -> None:
        """Ends the connection; a second call is no error."""
        self.clear_deadline()
        self._port.forget(self)
        transport = self.protocol.transport if self.protocol is not None else None
        if isinstance(transport, asyncio.Transport):
            transport.abort()
        elif self.task is not None:
            self.task.cancel()  # during the handshake


class ConnectionPort(ABC):
    """Serves one listening socket; a subclass answers the requests.

    Args:
        name: the port's name in the log.
        context: for TLS; None for plain HTTP.
        bounds: the limits.
    """

    def __init__(self, name: str, context: ssl.SSLContext | None = None, bounds: Bounds = BOUNDS) -> None:
        self._bounds = bounds
        self._context = context
        self._loop = asyncio.get_running_loop()
        #: The open connections by address; of each address, the one that was silent longest first.
        self._held: dict[str, dict[Connection, None]] = {}
        #: The unfinished bytes of each address that has any.
        self._bytes: Counter[str] = Counter()
        self._count = 0
        self._by_protocol: dict[object, Connection] = {}
        self._unfinished_bytes = 0
        self.drops = Drops(self._loop, name)
        self._server = _Server(self, self.drops, bounds)

    @property
    def connections(self) -> int:
        """Returns the number of open connections."""
        return self._count

    @property
    def unfinished_bytes(self) -> int:
        """Returns the bytes of all requests that are not answered yet."""
        return self._unfinished_bytes

    def hold(self, protocol: object, count: int) -> bool:
        """Counts bytes that came; returns false if their connection was cut off."""
        connection = self._by_protocol.get(protocol)
        if connection is None:
            return False
        connection.unfinished_bytes += count
        self._bytes[connection.address] += count
        self._unfinished_bytes += count
        if self._unfinished_bytes > self._bounds.bytes:
            self._largest_request().cut_off("beyond the bytes of all")
        return protocol in self._by_protocol

    async def serve(self, listener: socket.socket) -> None:
        """Accepts until cancelled; closes the socket."""
        in_a_row = 0
        try:
            while True:
                try:
                    sock, address = await self._loop.sock_accept(listener)
                except OSError as error:
                    self.drops.add(f"not accepted ({error.strerror})")
                    await asyncio.sleep(_NO_SOCKET)
                else:
                    self._accept(sock, str(address[0]))
                in_a_row = (in_a_row + 1) % _IN_A_ROW
                if not in_a_row:
                    await asyncio.sleep(0)  # sock_accept does not wait while clients are in the queue
        finally:
            listener.close()
            for connection in [each for held in self._held.values() for each in held]:
                connection.close()
            self._server.close()
            self.drops.close()

    def forget(self, connection: Connection) -> None:
        """Removes a connection from the count; a second call is no error."""
        held = self._held.get(connection.address, {})
        if connection in held:
            self._count -= 1
            del held[connection]
            if not held:
                del self._held[connection.address]
        self._by_protocol.pop(connection.protocol, None)
        self._release(connection)

    def connection_lost(self, protocol: object) -> None:
        """Handles the end of a protocol's connection, from either side."""
        connection = self._by_protocol.get(protocol)
        if connection is not None:
            connection.clear_deadline()
            self.forget(connection)

    def note_progress(self, connection: Connection) -> None:
        """Notes that a connection is the one of its address that was silent for the shortest time."""
        held = self._held.get(connection.address, {})
        if connection in held:
            del held[connection]
            held[connection] = None

    def _release(self, connection: Connection) -> None:
        self._unfinished_bytes -= connection.unfinished_bytes
        self._bytes[connection.address] -= connection.unfinished_bytes
        if not self._bytes[connection.address]:
            del self._bytes[connection.address]
        connection.unfinished_bytes = 0

    def _accept(self, sock: socket.socket, address: str) -> None:
        if self._count >= self._bounds.connections:
            greediest = max(self._held, key=lambda each: len(self._held[each]))
            silent_longest = next(iter(self._held[greediest]))
            if greediest == address and self._loop.time() - silent_longest.silent_since < _SILENT:
                sock.close()
                self.drops.add("beyond the connections of all")
                return
            silent_longest.cut_off("beyond the connections of all")
        connection = Connection(self, address)
        self._held.setdefault(address, {})[connection] = None
        self._count += 1
        connection.set_deadline(self._bounds.header_time, "without a request in time")
        connection.task = self._loop.create_task(self._connect(connection, sock))
        # A task that is cancelled before its first step cannot close the socket itself.
        connection.task.add_done_callback(lambda task: sock.close() if task.cancelled() else None)

    async def _connect(self, connection: Connection, sock: socket.socket) -> None:
        """Does the TLS handshake; afterwards aiohttp's protocol makes the callbacks."""
        seconds = self._bounds.header_time / 1000 if self._context is not None else None

        def protocol() -> web.RequestHandler:
            made = connection.protocol = self._server()
            self._by_protocol[made] = connection
            return made

        try:
            await self._loop.connect_accepted_socket(protocol, sock, ssl=self._context, ssl_handshake_timeout=seconds)
        except OSError:
            sock.close()
            self.drops.add("without a handshake")
            connection.close()

    @abstractmethod
    async def respond(self, request: web.BaseRequest, connection: Connection) -> web.StreamResponse:
        """The answer to a request; it sets the deadlines of its connection until it returns.

        Raises:
            ConnectionError: the client is gone.
        """

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answers one request."""
        connection = self._by_protocol.get(request.protocol)
        if connection is None:
            raise ConnectionResetError  # cut off between two steps of the loop
        try:
            response = await self.respond(request, connection)
        finally:
            self._release(connection)
        connection.set_deadline(self._bounds.idle_time, "idle")
        return response

    def _largest_request(self) -> Connection:
        """Returns the connection with the largest request of the address that holds most bytes."""
        held = self._held[max(self._bytes, key=lambda each: self._bytes[each])]
        return max(held, key=lambda each: each.unfinished_bytes)


class BoundedPort(ConnectionPort):
    """Answers requests with whole bodies.

    Args:
        name: the port's name in the log.
        answer: returns the answer; called on the loop, after the whole body has come.
        context: for TLS; None for plain HTTP.
        bounds: the limits.
    """

    def __init__(
        self, name: str, answer: Answer, context: ssl.SSLContext | None = None, bounds: Bounds = BOUNDS
    ) -> None:
        super().__init__(name, context, bounds)
        self._answer = answer

    async def respond(self, request: web.BaseRequest, connection: Connection) -> web.StreamResponse:
        """See :meth:`ConnectionPort.respond`."""
        connection.set_deadline(self._bounds.body_time, "without the whole body in time")
        body = await self._read_body(request)
        if body is None:
            text = f"the body is too long: {REVIEW_BODY} are allowed; make the pod smaller\n"
            response = web.Response(status=413, text=text)
            response.force_close()
            return response
        status, content_type, content = self._answer(request.method, request.path, body)
        return web.Response(status=status, body=content, headers={"content-type": content_type})

    async def _read_body(self, request: web.BaseRequest) -> bytes | None:
        """Returns the body; None if it is too long.

        Raises:
            ConnectionError: the rest of the body will not come.
        """
        if (request.content_length or 0) > REVIEW_BODY:
            return None
        chunks = bytearray()
        try:
            async for chunk in request.content.iter_any():
                chunks += chunk
                if len(chunks) > REVIEW_BODY:
                    return None
            return bytes(chunks)
        except (web.RequestPayloadError, HttpProcessingError) as error:
            raise ConnectionResetError from error
        finally:
            chunks.clear()  # frees the memory now, before the exception's frames are collected
