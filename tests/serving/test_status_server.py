"""The port of health and metrics: kubelet and Prometheus are answered, whatever other clients and the process do."""

import asyncio
import contextlib
import errno
import re
import resource
import socket
import threading
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from prometheus_client import generate_latest

import tessera
from tessera.clock import SystemClock
from tessera.serving.status_server import (
    STANDSTILL,
    STATUS_BYTES,
    STATUS_CONNECTIONS,
    STATUS_REQUESTS,
    LoopHeartbeat,
    listening_socket,
    serve_status,
)
from tessera.status_pages import JsonDocuments, Page, ProcessStatus
from tessera.webhook.base import WebhookMetrics

#: A request that never ends, as large as the port takes one header after the other.
ENDLESS = b"GET /healthz HTTP/1.1\r\nhost: x\r\n" + b"".join(b"x-%d: %b\r\n" % (n, b"a" * 2_000) for n in range(31))


class Process:
    """A process that is not ready for the given reason, and counts how often its metrics were made."""

    def __init__(self, reason: str = "") -> None:
        self._reason = reason
        self.made = 0
        self.threads: set[int] = set()

    def metrics_text(self) -> bytes:
        self.made += 1
        self.threads.add(threading.get_ident())
        return generate_latest(WebhookMetrics().registry)

    def unready_reason(self) -> str:
        return self._reason


class Everybody:
    """Lets everybody read every page."""

    def guards(self, _path: str) -> bool:
        return False

    def token(self, _headers: Mapping[str, str]) -> str:
        raise NotImplementedError

    async def refuse(self, _path: str, _token: str, _address: str) -> Page | None:
        raise NotImplementedError


@asynccontextmanager
async def served(process: ProcessStatus, documents: JsonDocuments | None = None) -> AsyncIterator[int]:
    listening: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(
        serve_status(
            process,
            0,
            address="127.0.0.1",
            on_listening=lambda _address, port: listening.set_result(port),
            documents=documents or {},
            guard=Everybody(),
        )
    )
    try:
        yield await listening
    finally:
        task.cancel()
        await asyncio.wait({task})


def ask(port: int, path: str, source: str = "127.0.0.1") -> str:
    """One answer, read by a thread that does not share the process's loop."""
    with socket.create_connection(("127.0.0.1", port), timeout=30, source_address=(source, 0)) as client:
        client.sendall(f"GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
        return client.makefile().read()


async def test_probes_answer_while_the_process_works() -> None:
    answers: list[str] = []
    async with served(Process("not yet")) as port:
        asking = threading.Thread(
            target=lambda: answers.extend(ask(port, path) for path in ("/healthz", "/readyz", "/x")), daemon=True
        )
        asking.start()
        end = time.monotonic() + 30
        while asking.is_alive() and time.monotonic() < end:
            sum(range(1000))  # this loop does nothing else meanwhile
    assert [each.split()[1] for each in answers] == ["200", "503", "404"]
    assert answers[1].endswith("not yet\n")


async def test_metrics_and_documents_are_made_on_the_loop_that_owns_them() -> None:
    process = Process()
    async with served(process, {"/usage": lambda: b"{}"}) as port, aiohttp.ClientSession() as session:
        async with session.get(f"http://127.0.0.1:{port}/metrics") as answer:
            assert 'tessera_reviews_total{verdict="refused"} 0.0' in await answer.text()
        async with session.get(f"http://127.0.0.1:{port}/usage") as answer:
            assert (answer.content_type, await answer.read()) == ("application/json", b"{}")
        async with session.post(f"http://127.0.0.1:{port}/metrics", data=b"x") as answer:
            assert answer.status == 405
    assert process.threads == {threading.get_ident()}


async def test_clients_who_ask_at_once_share_one_making() -> None:
    process = Process()
    async with served(process) as port:
        asked = [asyncio.to_thread(ask, port, "/metrics", f"127.0.0.{2 + number}") for number in range(30)]
        await asyncio.gather(*asked)
    assert process.made < 10


async def test_a_document_that_fails_fails_alone() -> None:
    def broken() -> bytes:
        raise ValueError("broken")

    async with served(Process(), {"/usage": broken}) as port:
        assert "500" in await asyncio.to_thread(ask, port, "/usage")
        assert "200" in await asyncio.to_thread(ask, port, "/healthz")


async def test_600_endless_requests_hold_no_more_than_the_bound_and_keep_kubelet_out_for_no_moment() -> None:
    async with served(Process()) as port:
        attackers = []
        for number in range(600):
            _, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.2", 0))
            writer.write(ENDLESS)
            attackers.append(writer)
            if number % 100 == 0:
                assert "200 OK" in await asyncio.to_thread(ask, port, "/healthz")
        assert "200 OK" in await asyncio.to_thread(ask, port, "/healthz")
        for writer in attackers:
            writer.transport.abort()
    assert STATUS_CONNECTIONS * len(ENDLESS) > STATUS_BYTES  # the attack does reach the bound on bytes


async def test_an_address_that_asks_too_often_waits() -> None:
    async with served(Process()) as port, aiohttp.ClientSession() as session:
        statuses = []
        for _ in range(STATUS_REQUESTS + 2):
            async with session.get(f"http://127.0.0.1:{port}/healthz") as answer:
                statuses.append(answer.status)
        assert statuses[0] == 200
        assert "200 OK" in await asyncio.to_thread(ask, port, "/healthz", "127.0.0.3")
        with contextlib.suppress(aiohttp.ClientError):
            for _ in range(4 * STATUS_REQUESTS):
                async with session.get(f"http://127.0.0.1:{port}/healthz") as answer:
                    if answer.status == 429:
                        break
            else:
                pytest.fail("nobody was told to wait")


def test_a_loop_that_stands_still_is_said_to() -> None:
    class Time(SystemClock):
        seconds = 0.0

        def monotonic(self) -> float:
            return self.seconds

    clock = Time()
    pulse = LoopHeartbeat(clock)
    clock.seconds = STANDSTILL / 1000
    assert pulse.missing == ""
    clock.seconds += 1
    assert pulse.missing == "this process has stood still for 31 s"


async def test_a_port_that_is_taken_is_an_error() -> None:
    with listening_socket("127.0.0.1", 0) as taken, pytest.raises(OSError, match="in use"):
        await serve_status(Process(), taken.getsockname()[1])


#: Ways to open a TCP port besides the bounded one.
_SERVERS = re.compile(
    r"AppRunner|TCPSite|SockSite|run_app|start_server|ThreadingHTTPServer|HTTPServer|start_http_server"
)


def test_every_tcp_port_of_the_product_is_a_bounded_one() -> None:
    root = Path(tessera.__file__).parent
    files = [path for path in root.rglob("*.py") if path.parent.name != "kubelet"]  # gRPC on kubelet's own sockets
    assert [path.name for path in files if _SERVERS.search(path.read_text())] == []
    listening = {path.relative_to(root).as_posix() for path in files if "create_server(" in path.read_text()}
    assert listening == {"serving/status_server.py"}


async def test_pages_that_name_pods_are_not_served_without_a_guard() -> None:
    with pytest.raises(ValueError, match="pages /usage: pages of JSON name pods, so they need a guard"):
        await serve_status(Process(), 0, documents={"/usage": lambda: b"{}"})


async def test_a_process_without_metrics_has_no_such_page() -> None:
    class Silent:
        def metrics_text(self) -> None:
            return None

        def unready_reason(self) -> str:
            return ""

    async with served(Silent()) as port:
        assert "404" in await asyncio.to_thread(ask, port, "/metrics")
        assert "200" in await asyncio.to_thread(ask, port, "/readyz")


def test_a_probe_finds_a_place_behind_2500_clients_that_nobody_has_accepted() -> None:
    """The kernel drops what does not fit, and the client tries again after a second."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4_096), hard))
    with listening_socket("127.0.0.1", 0) as port, contextlib.ExitStack() as opened:
        clients = [opened.enter_context(socket.socket()) for _ in range(2_500)]
        for client in clients:
            client.setblocking(False)
            client.connect_ex(port.getsockname())
        assert clients[-1].connect_ex(port.getsockname()) in {0, errno.EISCONN}
