"""One connection of a port: the wire's side of TLS and HTTP, with a deadline.

What comes from the wire waits here for the turn of its address, before TLS and HTTP spend work on it.

A :class:`Drops` counts the connections that a port cuts off, and logs them in one line a minute: strangers must not
fill a log.
"""

import asyncio
import contextlib
import logging
import socket
import ssl
from asyncio.sslproto import SSLProtocol
from collections import Counter, deque
from typing import Protocol, cast

from aiohttp.http_exceptions import HttpProcessingError

_log = logging.getLogger(__name__)

#: Seconds between two log lines about connections that were cut off.
_REPORT = 60.0


class Drops:
    """Counts cut-off connections and bodies, and logs at most one line a minute."""

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str) -> None:
        self._loop = loop
        self._name = name
        self._counts: Counter[str] = Counter()
        self._timer: asyncio.TimerHandle | None = None

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


class MalformedRequests(logging.Filter):
    """Counts each malformed or aborted request that aiohttp would log with a traceback."""

    def __init__(self, drops: Drops) -> None:
        super().__init__()
        self._drops = drops

    def filter(self, record: logging.LogRecord) -> bool:
        """See :meth:`logging.Filter.filter`."""
        error = record.exc_info[1] if record.exc_info else None
        match error:
            case HttpProcessingError():
                self._drops.add("with what is no HTTP")
            case ConnectionError():
                self._drops.add("gone before the body had come")
            case _:
                return True
        return False


#: Bytes that are read at once, and that a connection buffers besides the counted ones.
BUFFER = 16 * 1024


class Port(Protocol):
    """What a connection needs of its port.

    Attributes:
        drops: counts cut-off connections.
        buffer: into which every connection reads.
    """

    drops: Drops
    buffer: memoryview

    def protocol(self, connection: "Connection") -> asyncio.Protocol | SSLProtocol:
        """Returns what handles the bytes of a new connection."""

    def holds(self, connection: "Connection") -> bool:
        """Returns whether this connection counts still."""

    def take(self, connection: "Connection", count: int) -> bool:
        """Counts bytes that came; their work is done in the turn of their address. False if they cut it off."""

    def note_progress(self, connection: "Connection") -> None:
        """Notes that a connection is the one of its address that was silent for the shortest time."""

    def release(self, connection: "Connection") -> None:
        """Forgets the bytes that a connection holds."""

    def forget(self, connection: "Connection") -> None:
        """Removes a connection from the count; a second call is no error."""


def server_context() -> ssl.SSLContext:
    """Returns a context for TLS that has no certificate yet."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


class Tls(SSLProtocol):
    """asyncio's TLS, with a buffer of one record instead of 256 KiB for each connection."""

    max_size = BUFFER


class Connection(asyncio.BufferedProtocol):
    """One connection, from its acceptance on: the wire's side of TLS and HTTP.

    Attributes:
        address: the client's address.
        unfinished_bytes: bytes of its request that is not answered yet.
        silent_since: the loop's time of its last progress.
    """

    def __init__(self, port: Port, sock: socket.socket, address: str) -> None:
        self._port = port
        self._socket = sock
        self.address = address
        self.unfinished_bytes = 0
        self.silent_since = 0.0
        #: What came and is not worked on yet; the end of the stream is empty.
        self._came: deque[bytes] = deque()
        self._connecting: asyncio.Task[None] | None = None
        self._transport: asyncio.Transport | None = None
        self._protocol: asyncio.Protocol | SSLProtocol | None = None
        self._timer: asyncio.TimerHandle | None = None

    def work(self) -> None:
        """Does one piece of its work: connects, or passes what came on to TLS and HTTP."""
        if self._came:
            self._pass_on(self._came.popleft())
        elif self._connecting is None and self._port.holds(self):
            self._connecting = asyncio.get_running_loop().create_task(self._connect())
            # A task that is cancelled before its first step cannot close the socket itself.
            self._connecting.add_done_callback(lambda task: self._socket.close() if task.cancelled() else None)

    async def _connect(self) -> None:
        with contextlib.suppress(OSError):
            await asyncio.get_running_loop().connect_accepted_socket(lambda: self, self._socket)

    def _pass_on(self, data: bytes) -> None:
        protocol, transport = self._protocol, self._transport
        if protocol is None or transport is None:
            return
        if not data:
            if not protocol.eof_received():
                transport.close()
        elif isinstance(protocol, SSLProtocol):
            protocol.get_buffer(len(data))[: len(data)] = data
            protocol.buffer_updated(len(data))
        else:
            protocol.data_received(data)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See :meth:`asyncio.BaseProtocol.connection_made`."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's has another base
        self._protocol = self._port.protocol(self)
        self._protocol.connection_made(transport)

    def get_buffer(self, _sizehint: int) -> memoryview:
        """See :meth:`asyncio.BufferedProtocol.get_buffer`; all connections share one, since nothing stays in it."""
        return self._port.buffer

    def buffer_updated(self, nbytes: int) -> None:
        """See :meth:`asyncio.BufferedProtocol.buffer_updated`."""
        self._take(bytes(self._port.buffer[:nbytes]))

    def eof_received(self) -> bool:
        """See :meth:`asyncio.BufferedProtocol.eof_received`."""
        self._take(b"")
        return True

    def _take(self, data: bytes) -> None:
        if self._port.take(self, len(data)):
            self._came.append(data)

    def pause_writing(self) -> None:
        """See :meth:`asyncio.BaseProtocol.pause_writing`."""
        if self._protocol is not None:
            self._protocol.pause_writing()

    def resume_writing(self) -> None:
        """See :meth:`asyncio.BaseProtocol.resume_writing`."""
        if self._protocol is not None:
            self._protocol.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """See :meth:`asyncio.BaseProtocol.connection_lost`."""
        if self._protocol is not None:
            # aiohttp must have taken what was passed on.
            asyncio.get_running_loop().call_soon(self._protocol.connection_lost, exc)
        self._protocol = self._transport = None
        if isinstance(exc, ssl.SSLError):
            self._port.drops.add("without a handshake")
        self.close()

    def set_deadline(self, milliseconds: int, otherwise: str) -> None:
        """Sets the deadline of the next phase; at its end the connection is cut off with this reason, "" for none."""
        loop = asyncio.get_running_loop()
        self.silent_since = loop.time()
        self._port.note_progress(self)
        self.clear_deadline()
        self._timer = loop.call_later(milliseconds / 1000, self.cut_off, otherwise)

    def rest(self, milliseconds: int) -> None:
        """Holds nothing, and ends without a word after this time; a deadline that is set meanwhile replaces it."""
        self._port.release(self)
        self.set_deadline(milliseconds, "")

    def clear_deadline(self) -> None:
        """Removes the deadline."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def cut_off(self, why: str) -> None:
        """Ends the connection at once, and counts it unless ``why`` is empty."""
        if why:
            self._port.drops.add(why)
        self.close()

    def close(self) -> None:
        """Ends the connection; a second call is no error."""
        self.clear_deadline()
        self._port.forget(self)
        self._came.clear()
        if self._transport is not None:
            self._transport.abort()
        elif self._connecting is not None:
            self._connecting.cancel()
        else:
            self._socket.close()
