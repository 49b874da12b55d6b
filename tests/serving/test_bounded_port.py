"""The webhook's port under clients that never finish: who asks properly is answered all the time."""

import asyncio
import contextlib
import io
import logging
import socket
import ssl
import tracemalloc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
import uvloop

import tessera
from tessera.clock import SystemClock
from tessera.limits import REVIEW_BODY
from tessera.serving.bounded_port import PORT_BYTES, PORT_CONNECTIONS, Bounds
from tessera.serving.connection import server_context
from tessera.webhook.certificates import issue, load_certificate
from tessera.webhook.main import ReviewPort

#: No deadline passes during a test that does not wait for it.
PATIENT = Bounds(header_time=600_000, body_time=600_000)
HASTY = Bounds(header_time=50, body_time=50)
UNFINISHED = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % REVIEW_BODY


class Served:
    """A port of this machine."""

    def __init__(self, port: ReviewPort, number: int, answered: list[bytes]) -> None:
        self.port = port
        self.answered = answered
        self.url = f"http://127.0.0.1:{number}/"
        self.number = number

    async def connect(self, sends: bytes = b"", source: str = "127.0.0.2") -> asyncio.StreamWriter:
        _, writer = await asyncio.open_connection("127.0.0.1", self.number, local_addr=(source, 0))
        writer.write(sends)
        return writer

    async def ask(self, body: bytes = b"hello") -> bytes:
        async with aiohttp.ClientSession() as session, session.post(self.url, data=io.BytesIO(body)) as answer:
            return await answer.read()

    async def until_connections_reach(self, number: int) -> None:
        async with asyncio.timeout(30):
            while self.port.connections < number:  # noqa: ASYNC110 - the port tells nobody
                await asyncio.sleep(0)

    async def until_connections(self, most: int) -> None:
        async with asyncio.timeout(30):
            while self.port.connections > most:  # noqa: ASYNC110 - the port tells nobody
                await asyncio.sleep(0)


@asynccontextmanager
async def served(bounds: Bounds, *, tls: bool = False) -> AsyncIterator[Served]:
    context = None
    if tls:
        context = server_context()
        load_certificate(context, issue(["127.0.0.1"], SystemClock().now(), days=1))
    answered: list[bytes] = []

    def answer(body: bytes) -> bytes:
        answered.append(body)
        return body.upper()

    port = ReviewPort({"/": answer}, context, bounds)
    listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
    listener.setblocking(False)
    task = asyncio.create_task(port.serve(listener))
    try:
        yield Served(port, listener.getsockname()[1], answered)
    finally:
        task.cancel()
        await asyncio.wait({task})
        await asyncio.sleep(0)


def aborted(writers: list[asyncio.StreamWriter]) -> None:
    for writer in writers:
        writer.transport.abort()


async def test_150_connections_that_do_not_finish_3_mb_hold_no_more_than_the_bound() -> None:
    async with served(PATIENT) as at:
        most = 0
        writers = [await at.connect(UNFINISHED) for _ in range(150)]
        piece = b"x" * 2**16
        for _ in range(REVIEW_BODY // len(piece) - 1):
            for writer in writers:
                if not writer.transport.is_closing():
                    writer.write(piece)
            await asyncio.sleep(0)
            most = max(most, at.port.unfinished_bytes)
        assert await at.ask() == b"HELLO"
        assert most <= PORT_BYTES
        aborted(writers)


async def test_1500_half_open_connections_keep_nobody_out() -> None:
    async with served(PATIENT) as at:
        writers = []
        for number in range(1500):
            writers.append(await at.connect(b"POST / HT"))
            if number % 500 == 0:
                assert await at.ask() == b"HELLO"
        assert at.port.connections <= PORT_CONNECTIONS
        assert await at.ask() == b"HELLO"
        aborted(writers)


async def test_the_address_with_the_most_connections_gives_way() -> None:
    async with served(Bounds(connections=10, header_time=600_000)) as at:
        async with aiohttp.ClientSession() as session:
            async with session.post(at.url, data=b"first") as answer:
                assert await answer.read() == b"FIRST"
            greedy = [await at.connect(b"POST") for _ in range(30)]
            await at.until_connections(10)
            async with session.post(at.url, data=b"second") as answer:
                assert await answer.read() == b"SECOND"
            connector = session.connector
            assert isinstance(connector, aiohttp.TCPConnector)
        aborted(greedy)


@pytest.mark.parametrize("sends", [b"", b"POST / HTTP/1.1\r\n", UNFINISHED, b"POST / HTTP/1.1\r\nhost: x\r\na: b\r\n"])
@pytest.mark.parametrize("tls", [False, True])
async def test_what_does_not_come_in_time_is_cut_off(sends: bytes, tls: bool) -> None:
    async with served(HASTY, tls=tls) as at:
        writers = [await at.connect(sends) for _ in range(20)]
        await at.until_connections(0)
        assert at.port.unfinished_bytes == 0
        aborted(writers)


async def test_a_connection_that_is_used_again_stays() -> None:
    async with served(HASTY) as at, aiohttp.ClientSession() as session:
        for _ in range(3):
            async with session.post(at.url, data=b"x") as answer:
                assert await answer.read() == b"X"
            assert at.port.connections == 1


async def test_the_end_of_an_idle_connection_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    """API servers leave a connection open after each answer; either side ends it at last."""
    for bounds, client_ends in ((Bounds(idle_time=50), False), (PATIENT, True)):
        async with served(bounds) as at, aiohttp.ClientSession() as session:
            async with session.post(at.url, data=b"x") as answer:
                assert await answer.read() == b"X"
            if client_ends:
                await session.close()
            await at.until_connections(0)
    assert not caplog.messages


async def test_a_connection_that_is_made_for_later_waits_like_an_idle_one(caplog: pytest.LogCaptureFixture) -> None:
    """In a burst, Go's client connects ahead, with TLS, and may first use the connection long after that."""
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    async with served(Bounds(header_time=600_000, idle_time=50), tls=True) as at:
        _, idle = await asyncio.open_connection("127.0.0.1", at.number, ssl=trusting)
        await at.until_connections(0)
        assert not caplog.messages
        idle.transport.abort()
    async with served(Bounds(header_time=500, idle_time=600_000), tls=True) as at:
        with contextlib.suppress(ConnectionError):  # the handshake has the same time
            _, begun = await asyncio.open_connection("127.0.0.1", at.number, ssl=trusting)
            begun.write(b"POST / HTTP/1.1\r\n")
        await at.until_connections(0)
        assert caplog.messages[0].endswith("connections cut off: 1 without a request in time")


async def test_a_body_that_is_too_long_is_refused_unread() -> None:
    async with served(PATIENT) as at, aiohttp.ClientSession() as session:
        with contextlib.suppress(aiohttp.ClientError, ConnectionError):
            async with session.post(at.url, data=io.BytesIO(b"x" * (REVIEW_BODY + 1))) as answer:
                assert answer.status == 413
        assert await at.ask(b"y" * REVIEW_BODY) == b"Y" * REVIEW_BODY


async def test_dropped_connections_are_logged_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        async with served(PATIENT) as at:
            for sends in (b"", UNFINISHED, b"\x16\x03\x01nonsense\r\n\r\n", b"GET\r\n\r\n"):
                aborted([await at.connect(sends) for _ in range(50)])
                for _ in range(5):
                    await at.ask()
            await at.until_connections(5)
    assert len(caplog.records) <= 2, caplog.messages
    assert all("connections cut off" in message for message in caplog.messages)


def connect_at_once(port: int, source: str, sends: bytes, number: int = 1) -> list[socket.socket]:
    """Clients who connected and sent before the port's loop could look."""
    found = []
    for _ in range(number):
        found.append(socket.create_connection(("127.0.0.1", port), source_address=(source, 0)))
        found[-1].sendall(sends)
    return found


async def read_all(client: socket.socket) -> bytes:
    """What a client gets until its connection ends."""
    client.setblocking(False)
    got, loop = b"", asyncio.get_running_loop()
    async with asyncio.timeout(30):
        with contextlib.suppress(ConnectionError):
            while more := await loop.sock_recv(client, 2**16):
                got += more
    return got


CLOSING = b"POST / HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 5\r\n\r\n"


async def test_the_last_of_300_who_ask_at_once_is_answered_among_the_first() -> None:
    """All are in the kernel's queue before the port looks, and kubelet is the last one there."""
    async with served(PATIENT) as at:
        crowd = connect_at_once(at.number, "127.0.0.2", CLOSING + b"crowd", 300)
        (kubelet,) = connect_at_once(at.number, "127.0.0.1", CLOSING + b"probe")
        assert b"PROBE" in await read_all(kubelet)
        assert at.answered.index(b"probe") < 40
        assert b"CROWD" in await read_all(crowd[-1])
        for each in (*crowd, kubelet):
            each.close()


async def test_connections_that_drip_are_cut_off_before_they_hold_much() -> None:
    """A byte alone counts for a piece."""
    async with served(Bounds(bytes=64 * 1024, header_time=600_000)) as at:
        (dripping,) = connect_at_once(at.number, "127.0.0.2", b"POST / HTTP/1.1\r\nx: ")
        reading = asyncio.create_task(read_all(dripping))
        with contextlib.suppress(ConnectionError):
            for _ in range(1_000):
                await asyncio.get_running_loop().sock_sendall(dripping, b"a")
                await asyncio.sleep(0)
                assert at.port.unfinished_bytes <= 64 * 1024
        assert await reading == b""
        dripping.close()


async def test_of_many_requests_at_once_one_is_answered() -> None:
    request = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nagain"
    async with served(PATIENT) as at:
        (client,) = connect_at_once(at.number, "127.0.0.2", request * 20)
        assert (await read_all(client)).count(b"AGAIN") == 1
        client.close()


async def test_a_tls_connection_that_waits_costs_a_tenth_of_asyncios_own() -> None:
    sent = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), sent, server_hostname="x").do_handshake()
    async with served(PATIENT, tls=True) as at:
        tracemalloc.start()
        clients = connect_at_once(at.number, "127.0.0.2", sent.read(), 50)
        for each in clients:
            each.setblocking(False)
            assert await asyncio.get_running_loop().sock_recv(each, 100)  # the handshake has begun
        cost, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert cost < 50 * 48 * 1024
        for each in clients:
            each.close()


@pytest.mark.parametrize("make_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_who_is_cut_off_is_so_on_every_loop(make_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def run() -> None:
        async with served(Bounds(connections=3, header_time=600_000)) as at:
            first = connect_at_once(at.number, "127.0.0.2", b"POST", 3)
            await at.until_connections_reach(3)
            second = connect_at_once(at.number, "127.0.0.3", b"POST", 1)
            assert await read_all(first[0]) == b""
            for each in (*first, *second):
                each.close()

    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(run())


def test_processes_whose_port_reads_what_strangers_send_run_on_asyncios_own_loop() -> None:
    """A loop of uvloop reads 32 times from one connection before it looks at the next."""
    root = Path(tessera.__file__).parent / "cli"
    for name in ("webhook.py", "dashboard.py"):
        text = (root / name).read_text()
        assert text.count("run_process(_") == text.count("on_uvloop=False)") > 0, name
