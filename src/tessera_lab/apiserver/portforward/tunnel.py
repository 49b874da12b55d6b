"""One ``port-forward``: pairs the client's streams, and copies between them and connections to the pod.

For each connection a client opens two streams with the same ``requestid``: one for an error, which only the server
writes, and one for the data (k8s.io/api/core/v1, ``PortHeader`` and its neighbours). An error ends the client, an empty
error stream the connection. A slow pod or client slows its own tunnel: nothing is kept beyond the buffers of sockets.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress

from tessera_lab.apiserver.interfaces import OpenConnection, PodPeer
from tessera_lab.apiserver.portforward.spdy import (
    DataReceived,
    Event,
    PingReceived,
    SpdyConnection,
    SpdyError,
    StreamOpened,
    StreamReset,
)
from tessera_lab.limits import TUNNEL_CONNECTIONS

#: Bytes that are read from a pod at a time.
_PIECE = 32 * 2**10
_HIGHEST_PORT = 65_535

Send = Callable[[bytes], Awaitable[None]]


class _Forward:
    """One connection: its two streams, and the pod's end once both are there."""

    def __init__(self) -> None:
        self.error: int | None = None
        self.data: int | None = None
        self.peer: PodPeer | None = None


class Tunnel:
    """One client's port-forward to one pod.

    Args:
        pod: the pod's name, for errors.
        connect: opens a connection to a port of the pod.
        send: sends bytes to the client.
    """

    def __init__(self, pod: str, connect: OpenConnection, send: Send) -> None:
        self._pod = pod
        self._connect = connect
        self._send = send
        self._spdy = SpdyConnection()
        self._forwards: dict[str, _Forward] = {}
        self._streams: dict[int, _Forward] = {}

    async def run(self, messages: AsyncIterator[bytes]) -> None:
        """Forwards until the client's messages end.

        Raises:
            SpdyError: the client broke the protocol, or exceeded a limit.
        """
        async with asyncio.TaskGroup() as group:
            try:
                async for message in messages:
                    for event in self._spdy.receive(message):
                        await self._handle(event, group)
            finally:
                for forward in self._forwards.values():
                    if forward.peer is not None:
                        forward.peer[1].transport.abort()

    async def _handle(self, event: Event, group: asyncio.TaskGroup) -> None:
        match event:
            case StreamOpened(stream, headers):
                await self._open(stream, headers, group)
            case DataReceived(stream, data, last):
                await self._write(stream, data, last=last)
            case StreamReset(stream):
                self._drop(self._streams.get(stream), stream)
            case PingReceived(number):
                await self._send(self._spdy.ping(number))

    async def _open(self, stream: int, headers: Mapping[str, str], group: asyncio.TaskGroup) -> None:
        if stream in self._streams:
            raise SpdyError(f"stream {stream} is open already")
        kind, port = headers.get("streamtype", ""), headers.get("port", "")
        if kind not in {"data", "error"} or not _is_port(port):
            raise SpdyError(f"a stream of type {kind[:20]!r} for port {port[:20]!r}")
        number = headers.get("requestid", "")
        forward = self._forwards.setdefault(number, _Forward())
        if len(self._forwards) > TUNNEL_CONNECTIONS:
            raise SpdyError(f"too many connections in one port-forward; {TUNNEL_CONNECTIONS} are allowed")
        if getattr(forward, kind) is not None:
            raise SpdyError(f"two streams of type {kind} for connection {number[:20]!r}")
        setattr(forward, kind, stream)
        self._streams[stream] = forward
        await self._send(self._spdy.accept(stream))
        if forward.data is not None and forward.error is not None:
            await self._join(number, forward, int(port), group)

    async def _join(self, number: str, forward: _Forward, port: int, group: asyncio.TaskGroup) -> None:
        """Connects a complete pair to the pod."""
        try:
            forward.peer = await self._connect(port)
        except OSError as error:
            await self._end(number, forward, f"error forwarding port {port} to pod {self._pod}: {error}")
            return
        group.create_task(self._copy(number, forward, forward.peer))

    async def _copy(self, number: str, forward: _Forward, peer: PodPeer) -> None:
        """Copies what the pod sends until it ends."""
        assert forward.data is not None
        try:
            while data := await peer[0].read(_PIECE):
                await self._send(self._spdy.data(forward.data, data))
        except OSError:
            pass  # one end broke: the other sees its end
        finally:
            peer[1].transport.abort()
        with suppress(OSError):  # the client is gone
            await self._end(number, forward, "")

    async def _end(self, number: str, forward: _Forward, error: str) -> None:
        """Ends a pair: the data first, then the error, which the client reads to its end."""
        assert forward.data is not None
        assert forward.error is not None
        if self._forwards.pop(number, None) is None:
            return
        for stream in (forward.data, forward.error):
            self._streams.pop(stream, None)
        await self._send(self._spdy.data(forward.data, b"", last=True))
        await self._send(self._spdy.data(forward.error, error.encode(), last=True))

    async def _write(self, stream: int, data: bytes, *, last: bool) -> None:
        forward = self._streams.get(stream)
        if forward is None or stream != forward.data:
            return  # the client's end of an error stream, or data for a connection that is over
        if forward.peer is None:
            raise SpdyError("data before the stream for errors")
        writer = forward.peer[1]
        if data:
            writer.write(data)
            try:
                await writer.drain()
            except OSError:
                return  # the pod's end broke; the copy from it ends the pair
        if last and writer.can_write_eof():
            writer.write_eof()

    def _drop(self, forward: _Forward | None, stream: int) -> None:
        """The client wants no more of a connection; the copy from the pod then ends it."""
        if forward is not None and forward.peer is not None and stream == forward.data:
            forward.peer[1].transport.abort()


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdecimal() and 0 < int(text[:6]) <= _HIGHEST_PORT
