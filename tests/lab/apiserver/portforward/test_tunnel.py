"""Hostile and odd clients of a port-forward: each harms its own tunnel only."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.lab.apiserver.portforward.test_spdy import Client, control

from tessera_lab.apiserver.interfaces import PodPeer
from tessera_lab.apiserver.portforward.spdy import SpdyConnection, SpdyError
from tessera_lab.apiserver.portforward.tunnel import Tunnel
from tessera_lab.limits import TUNNEL_CONNECTIONS


class Pod:
    """Sends back what it gets; counts its connections."""

    def __init__(self) -> None:
        self.open = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._server: asyncio.Server | None = None

    async def connect(self, port: int) -> PodPeer:
        if port == 1:
            raise ConnectionRefusedError("refused")
        if self._server is None:
            self._server = await asyncio.start_server(self._echo, "127.0.0.1", 0)
        host, number = self._server.sockets[0].getsockname()
        return await asyncio.open_connection(host, number)

    async def _echo(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        self._idle.clear()
        try:
            while data := await reader.read(1000):
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            self.open -= 1
            if not self.open:
                self._idle.set()
            writer.close()

    async def ended(self) -> None:
        """Returns once it has no connection, and listens no more."""
        await self._idle.wait()
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()


class User:
    """A client: what it has got, and a tunnel to a pod."""

    def __init__(self) -> None:
        self.got = bytearray()
        self.pod = Pod()
        self.client = Client()
        self._grew = asyncio.Event()

    async def send(self, data: bytes) -> None:
        self.got += data
        self._grew.set()

    async def until(self, part: bytes) -> None:
        """Returns once it has got a part."""
        while part not in self.got:
            self._grew.clear()
            await self._grew.wait()

    def pair(self, number: int, port: str = "80") -> bytes:
        """The frames that open the streams of a connection."""
        headers = {"port": port, "requestid": str(number)}
        error = self.client.open(4 * number + 1, {**headers, "streamtype": "error"})
        return error + self.client.open(4 * number + 3, {**headers, "streamtype": "data"})

    async def run(self, *frames: bytes, until: bytes = b"") -> None:
        """Sends the frames, waits for a part of what comes, and goes away."""

        async def messages() -> AsyncIterator[bytes]:
            for frame in frames:
                yield frame
            await self.until(until)

        async with asyncio.timeout(30):
            await Tunnel("p", self.pod.connect, self.send).run(messages())
            await self.pod.ended()


async def test_a_client_that_goes_away_ends_its_connections() -> None:
    user = User()
    await user.run(user.pair(0), SpdyConnection.data(3, b"hello"), until=SpdyConnection.data(3, b"hello"))


async def test_the_end_of_the_client_s_half_ends_the_pair_in_order() -> None:
    user = User()
    last = SpdyConnection.data(3, b"", last=True) + SpdyConnection.data(1, b"", last=True)
    await user.run(user.pair(0), SpdyConnection.data(3, b"", last=True), until=last)


async def test_a_reset_ends_one_connection_only() -> None:
    user = User()
    reset, more = control(3, b"\0\0\0\x03\0\0\0\x05"), SpdyConnection.data(7, b"more")
    await user.run(user.pair(0), user.pair(1), reset, more, until=more)
    assert SpdyConnection.data(1, b"", last=True) in user.got


async def test_a_refused_port_is_told_in_the_stream_for_errors() -> None:
    user = User()
    said = SpdyConnection.data(1, b"error forwarding port 1 to pod p: refused", last=True)
    late = SpdyConnection.data(3, b"late")
    await user.run(user.pair(0, "1"), late, user.pair(1), SpdyConnection.data(7, b"x"), until=said)


async def test_ended_connections_do_not_count() -> None:
    user = User()
    frames = [user.pair(number, "1") for number in range(3 * TUNNEL_CONNECTIONS)]
    await user.run(*frames)


@pytest.mark.parametrize(
    ("frames", "said"),
    [
        (lambda user: [user.pair(each) for each in range(TUNNEL_CONNECTIONS + 1)], "too many connections"),
        (lambda user: [user.pair(0), user.pair(0)], "stream 1 is open already"),
        (lambda user: [user.pair(0, "70000")], "a stream of type 'error' for port '70000'"),
        (lambda user: [user.client.open(1, {"streamtype": "shell", "port": "80"})], "a stream of type 'shell'"),
        (
            lambda user: [
                user.client.open(1, {"streamtype": "data", "port": "80"}),
                SpdyConnection.data(1, b"early"),
            ],
            "data before the stream for errors",
        ),
        (
            lambda user: [user.client.open(each, {"streamtype": "data", "port": "80"}) for each in (1, 3)],
            "two streams of type data",
        ),
    ],
)
async def test_a_client_that_breaks_the_rules_is_dropped(frames: object, said: str) -> None:
    user = User()
    with pytest.RaisesGroup(pytest.RaisesExc(SpdyError, match=said)):
        await user.run(*frames(user))  # type: ignore[operator]
    await user.pod.ended()
