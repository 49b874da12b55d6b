"""The ports of the processes under clients that do their worst: memory, and the time of a probe meanwhile.

    python bench/ports.py                      about two minutes
    python bench/ports.py --ports page --attacks headers,drip --seconds 20
    python bench/ports.py --json ports.json

Attacks, each by one address that opens the given number of connections, and opens a new one half a second after one is
cut off:

- *headers* sends requests of 120 headers of 8 KB that never end;
- *half* sends a part of a request line;
- *drip* sends a header of many bytes, one at a time;
- *asks* sends one request after the other;
- *deaf* asks for the largest page and reads nothing;
- *queue* sends hundreds of requests at once on each connection;
- *hello* begins a TLS handshake and stops; for ports with TLS, where the others but *half* mean the same.

Meanwhile a second address asks ``/healthz`` ten times a second (of the webhook, which answers that there is no such
path); an answer later than 10 s counts as none. *memory* is
the growth of the largest resident size of the serving process; *CPU* is its share of a core; *CPU ms* is the most CPU
time that it used during a probe: what the probe takes on a machine that does nothing else.

``status`` is the port of health and metrics that every process has, ``page`` and ``page-tls`` the live page's port,
``reviews`` the webhook's. The alternative, ``aiohttp.web.AppRunner``, took 3.9 GB and 5.8 s for a probe in *headers*.
"""

import argparse
import asyncio
import contextlib
import heapq
import json
import multiprocessing
import resource
import select
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any, NamedTuple

from tessera.clock import SystemClock
from tessera.dashboard.feed import FeedGroup
from tessera.dashboard.server import PageAddress, PageServer
from tessera.serving.connection import server_context
from tessera.serving.status_server import listening_socket, serve_status
from tessera.webhook.certificates import issue, load_certificate
from tessera.webhook.main import ReviewPort

ATTACKER, KUBELET = "127.0.0.9", "127.0.0.1"
#: Bytes of the metrics: those of a node with 8 cards and 56 slices, as bench/scrape.py prints.
METRICS = b"# some metrics\n" * 20_000
#: Seconds from the end of an attacker's connection to its next.
_AGAIN = 0.5
#: Seconds between two probes.
_PAUSE = 0.1
_TITLES = ("port", "attack", "memory MB", "CPU", "probes", "unanswered", "slowest ms", "CPU ms")


class Process:
    """A process with nothing but its pages."""

    def metrics_text(self) -> bytes:
        """The text of ``/metrics``."""
        return METRICS

    def unready_reason(self) -> str:
        """Nothing is missing."""
        return ""


def _client_tls() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _tls() -> ssl.SSLContext:
    context = server_context()
    load_certificate(context, issue([KUBELET], SystemClock().now(), days=1))
    return context


async def _status(ready: Pipe) -> None:
    await serve_status(Process(), 0, address=KUBELET, on_listening=lambda _address, port: ready.send(port))


async def _page(ready: Pipe, tls: ssl.SSLContext | None = None) -> None:
    server = PageServer(FeedGroup(), _explain, PageAddress(KUBELET, 0, tls=tls))
    await server.run(lambda _address, port: ready.send(port))


async def _explain(*_: object) -> Any:
    raise NotImplementedError


async def _reviews(ready: Pipe) -> None:
    listener = listening_socket(KUBELET, 0)
    ready.send(listener.getsockname()[1])
    await ReviewPort({}, _tls()).serve(listener)


PORTS: dict[str, Callable[[Pipe], Any]] = {
    "status": _status,
    "page": _page,
    "page-tls": lambda ready: _page(ready, _tls()),
    "reviews": _reviews,
}
TLS = frozenset({"page-tls", "reviews"})
ATTACKS = ("headers", "half", "drip", "asks", "deaf", "queue", "hello")


def _serve(name: str, ready: Pipe) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (8192, 8192))
    asyncio.run(PORTS[name](ready))


def _hello() -> bytes:
    """The first message of a TLS client."""
    sent = ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), sent, server_hostname="x")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return sent.read()


def _payload(name: str, attack: str, port: int) -> bytes:
    path = b"/assets/page.js" if name.startswith("page") else b"/metrics"
    method = b"HEAD" if attack == "asks" else b"GET"
    ask = b"%b %b HTTP/1.1\r\nhost: 127.0.0.1:%d\r\n" % (method, path, port)
    match attack:
        case "headers":
            return ask + b"".join(b"x-%d: %b\r\n" % (n, b"a" * 8_000) for n in range(120))
        case "half":
            return b"GET /heal"
        case "drip":
            return ask + b"x: " + b"a" * 1_000_000
        case "queue":
            return (ask + b"\r\n") * 400
        case "hello":
            return _hello()
    return ask + b"\r\n"


class _Attacker:
    """One thread that does nothing but attack: no library is between it and its sockets."""

    def __init__(self, port: int, attack: str, sends: bytes) -> None:
        self._port, self._attack, self._sends = port, attack, sends
        self._poll = select.epoll()
        self._socks: dict[int, socket.socket] = {}
        self._left: dict[int, memoryview] = {}
        self._due: list[float] = []

    def run(self, clients: int) -> None:
        """Attacks until the process is killed."""
        self._due = [0.0] * clients
        while True:
            while self._due and self._due[0] <= time.monotonic():
                heapq.heappop(self._due)
                self._open()
            for number, event in self._poll.poll(0.01):
                try:
                    self._turn(number, event)
                except BlockingIOError:
                    continue
                except OSError:
                    self._end(number)

    def _open(self) -> None:
        sock = socket.socket()
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_IP, 24, 1)  # IP_BIND_ADDRESS_NO_PORT
        sock.bind((ATTACKER, 0))
        sock.connect_ex((KUBELET, self._port))
        self._socks[sock.fileno()] = sock
        self._poll.register(sock)
        self._begin(sock.fileno())

    def _turn(self, number: int, event: int) -> None:
        if event & (select.EPOLLERR | select.EPOLLHUP):
            self._end(number)
        elif event & select.EPOLLIN:
            if not self._socks[number].recv(2**18):
                self._end(number)
            elif not self._left[number]:
                self._begin(number)
        else:
            self._send(number)

    def _begin(self, number: int) -> None:
        self._left[number] = memoryview(self._sends)
        self._poll.modify(number, select.EPOLLIN | select.EPOLLOUT)

    def _send(self, number: int) -> None:
        left = self._left[number]
        sent = self._socks[number].send(left[: 1 if self._attack == "drip" else len(left)])
        self._left[number] = left[sent:]
        if len(left) == sent:
            self._poll.modify(number, 0 if self._attack == "deaf" else select.EPOLLIN)

    def _end(self, number: int) -> None:
        self._poll.unregister(number)
        self._socks.pop(number).close()
        heapq.heappush(self._due, time.monotonic() + _AGAIN)


def _run_attack(name: str, port: int, attack: str, clients: int) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (8192, 8192))
    _Attacker(port, attack, _payload(name, attack, port)).run(clients)


class _Target(NamedTuple):
    """What is probed: a port of a process."""

    pid: int
    port: int
    tls: ssl.SSLContext | None

    def cpu(self) -> float:
        """The CPU seconds of the process."""
        return time.clock_gettime((~self.pid << 3) | 2)  # CPUCLOCK_SCHED of linux/posix-timers.h


async def _probe(at: _Target) -> tuple[float, float] | None:
    """The seconds until the answer, and those of CPU time of the process meanwhile; None without an answer."""
    began, cpu = time.monotonic(), at.cpu()
    try:
        async with asyncio.timeout(10):
            reader, writer = await asyncio.open_connection(KUBELET, at.port, local_addr=(KUBELET, 0), ssl=at.tls)
            writer.write(b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1:%d\r\nconnection: close\r\n\r\n" % at.port)
            answer = await reader.read()
            took = time.monotonic() - began, at.cpu() - cpu
            writer.close()
    except (OSError, TimeoutError):
        return None
    return took if answer.startswith((b"HTTP/1.1 200 ", b"HTTP/1.1 404 ")) else None


async def _probes(at: _Target, seconds: float) -> list[tuple[float, float] | None]:
    end, found = time.monotonic() + seconds, []
    while time.monotonic() < end:
        await asyncio.sleep(_PAUSE)
        found.append(await _probe(at))
    return found


def _peak(pid: int) -> int:
    """The largest resident size of a process in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def measure(name: str, attack: str, clients: int, seconds: float) -> dict[str, Any]:
    """One row: a port under one attack."""
    context = multiprocessing.get_context("spawn")
    ready, send = multiprocessing.Pipe(duplex=False)
    process = context.Process(target=_serve, args=(name, send), daemon=True)
    process.start()
    at = _Target(process.pid or 0, ready.recv(), _client_tls() if name in TLS else None)
    asyncio.run(_probes(at, 3 * _PAUSE))
    memory, cpu = _peak(at.pid), at.cpu()
    attacker = context.Process(target=_run_attack, args=(name, at.port, attack, clients), daemon=True)
    attacker.start()
    probes = asyncio.run(_probes(at, seconds))
    answered = [each for each in probes if each is not None]
    row = {
        "port": name,
        "attack": attack,
        "memory_mb": round((_peak(at.pid) - memory) / 1e6, 1),
        "cpu": round((at.cpu() - cpu) / seconds, 2),
        "probes": len(probes),
        "unanswered": len(probes) - len(answered),
        "slowest_ms": round(1000 * max((took for took, _ in answered), default=0.0), 1),
        "cpu_ms": round(1000 * max((cpu for _, cpu in answered), default=0.0), 1),
    }
    for each in (attacker, process):
        each.kill()
        each.join()
    return row


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ports", default=",".join(PORTS), help="the ports, separated by commas")
    parser.add_argument("--attacks", default=",".join(ATTACKS), help="the attacks, separated by commas")
    parser.add_argument("--clients", type=int, default=2_000, help="connections of an attack")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of an attack")
    parser.add_argument("--json", type=Path, help="write the rows here too")
    options = parser.parse_args(arguments)
    rows = []
    print("".join(f"{title:>12}" for title in _TITLES))
    for name in options.ports.split(","):
        for attack in options.attacks.split(","):
            if attack in ({"half", "hello"} if name in TLS else set(ATTACKS) - {"hello"}):
                row = measure(name, attack, options.clients, options.seconds)
                rows.append(row)
                print("".join(f"{each:>12}" for each in row.values()), flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
