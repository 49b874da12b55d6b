"""The ports of the processes under clients that do their worst: memory, and the time of a probe meanwhile.

    python bench/ports.py                      about a minute
    python bench/ports.py --json ports.json

Three attacks, each by an address of its own: *headers* sends requests of 120 headers of 8 KB that never end, *half*
sends a part of a request line, *scrapes* reads ``/metrics`` again and again over 30 connections. The first two open the
given number of connections, and open new ones as fast as they are cut off. Meanwhile a second address asks ``/healthz``
twice a second, as kubelet would; an answer later than 10 s counts as none. *memory* is the growth of the largest
resident size of the serving process.

``status`` is the port of health and metrics that every process has, ``page`` the live page's port; ``aiohttp`` is the
alternative: the same answers by ``aiohttp.web.AppRunner``.
"""

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import resource
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

from aiohttp import web

from tessera.dashboard.server import PagePort
from tessera.serving.status_server import listening_socket, serve_status

ATTACKER, KUBELET = "127.0.0.9", "127.0.0.1"
HEADERS = b"GET /healthz HTTP/1.1\r\nhost: x\r\n" + b"".join(b"x-%d: %b\r\n" % (n, b"a" * 8_000) for n in range(120))
HALF = b"GET /heal"
SCRAPE = b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n"
SCRAPERS = 30
#: Bytes of the metrics: those of a node with 8 cards and 56 slices, as bench/scrape.py prints.
METRICS = b"# some metrics\n" * 20_000


class Process:
    """A process with nothing but its pages."""

    def metrics_text(self) -> bytes:
        """The text of ``/metrics``."""
        return METRICS

    def unready_reason(self) -> str:
        """Nothing is missing."""
        return ""


async def _status(ready: Pipe) -> None:
    await serve_status(Process(), 0, address=KUBELET, on_listening=lambda _address, port: ready.send(port))


async def _page(ready: Pipe) -> None:
    listener = listening_socket(KUBELET, 0)
    ready.send(listener.getsockname()[1])
    await PagePort(_answer, None).serve(listener)


async def _aiohttp(ready: Pipe) -> None:
    app = web.Application()
    app.add_routes([web.get("/{path:.*}", lambda request: _answer(request, None))])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, KUBELET, 0)
    await site.start()
    ready.send(runner.addresses[0][1])
    await asyncio.Event().wait()


async def _answer(request: web.BaseRequest, _connection: object) -> web.Response:
    return web.Response(body=METRICS if request.path == "/metrics" else b"ok\n")


PORTS: dict[str, Callable[[Pipe], Any]] = {"aiohttp": _aiohttp, "status": _status, "page": _page}


def _serve(name: str, ready: Pipe) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (8192, 8192))
    asyncio.run(PORTS[name](ready))


async def _connect(port: int, source: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(KUBELET, port, local_addr=(source, 0))


async def _hold(port: int, sends: bytes) -> None:
    """One client that never ends its request, and comes again when it is cut off."""
    while True:
        with contextlib.suppress(OSError):
            reader, writer = await _connect(port, ATTACKER)
            writer.write(sends)
            await reader.read()
            writer.transport.abort()
        await asyncio.sleep(0.5)


async def _scrape(port: int) -> None:
    while True:
        with contextlib.suppress(OSError):
            reader, writer = await _connect(port, ATTACKER)
            left = 0
            while not reader.at_eof():
                if left <= 0:
                    writer.write(SCRAPE)
                    left = len(METRICS)
                left -= len(await reader.read(len(METRICS)))
        await asyncio.sleep(0.01)


async def _probe(port: int) -> float | None:
    began = time.monotonic()
    try:
        async with asyncio.timeout(10):
            reader, writer = await _connect(port, KUBELET)
            writer.write(b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            answer = await reader.read()
            writer.close()
    except (OSError, TimeoutError):
        return None
    return time.monotonic() - began if b" 200 " in answer else None


async def _attack(port: int, attack: str, clients: int) -> None:
    if attack == "scrapes":
        await asyncio.gather(*(_scrape(port) for _ in range(SCRAPERS)))
    else:
        await asyncio.gather(*(_hold(port, HEADERS if attack == "headers" else HALF) for _ in range(clients)))


def _run_attack(port: int, attack: str, clients: int) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (8192, 8192))
    asyncio.run(_attack(port, attack, clients))


async def _probes(port: int, seconds: float) -> list[float | None]:
    end, found = time.monotonic() + seconds, []
    while time.monotonic() < end:
        await asyncio.sleep(0.5)
        found.append(await _probe(port))
    return found


def _peak(pid: int) -> int:
    """The largest resident size of a process in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def measure(name: str, attack: str, clients: int, seconds: float) -> dict[str, Any]:
    """One row: a port under one attack."""
    ready, at = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(name, at), daemon=True)
    process.start()
    port = ready.recv()
    before = _peak(process.pid or 0)
    attacker = multiprocessing.get_context("spawn").Process(
        target=_run_attack, args=(port, attack, clients), daemon=True
    )
    attacker.start()
    probes = asyncio.run(_probes(port, seconds))
    attacker.kill()
    attacker.join()
    row = {
        "port": name,
        "attack": attack,
        "memory_mb": round((_peak(process.pid or 0) - before) / 1e6, 1),
        "probes": len(probes),
        "unanswered": sum(each is None for each in probes),
        "slowest_ms": round(max((each for each in probes if each is not None), default=0.0) * 1000, 1),
    }
    process.kill()
    process.join()
    return row


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=2_000, help="connections of an attack")
    parser.add_argument("--seconds", type=float, default=8.0, help="length of an attack")
    parser.add_argument("--json", type=Path, help="write the rows here too")
    options = parser.parse_args(arguments)
    rows = []
    print(f"{'port':<9}{'attack':<10}{'memory MB':>10}{'probes':>8}{'unanswered':>12}{'slowest ms':>12}")
    for name in PORTS:
        for attack in ("headers", "half", "scrapes"):
            row = measure(name, attack, options.clients, options.seconds)
            rows.append(row)
            print(
                f"{row['port']:<9}{row['attack']:<10}{row['memory_mb']:>10}{row['probes']:>8}"
                f"{row['unanswered']:>12}{row['slowest_ms']:>12}",
                flush=True,
            )
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
