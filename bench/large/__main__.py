"""The controller's process on a large cluster: memory, CPU, time from start to ready, and a flood of pods.

    python -m bench.large                                        5,000 nodes of 8 cards, 20,000 pods
    python -m bench.large --nodes 500 --pods 2000 --json large.json

The lab's API server runs in this process and holds the objects of a large cluster; ``tessera controller`` is a process
of its own that reads them over HTTP. There is no kubelet and no agent. Three rows, each a fresh process:

*flood*: all pods wait when the controller starts; it gives them slices and opens their gates.
*restart*: the pods are bound and run; until the controller is ready, it reads everything.
*reader*: what remains of that if a process only lists the same objects and keeps them as decoded JSON, the alternative
that most controllers choose. *ready* counts from the start of the process; *CPU* and *peak* are the kernel's figures
of the process.
"""

import argparse
import asyncio
import json
import os
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from bench.large.cluster import CARDS, TOKEN, Cluster

from tessera_lab.apiserver.main.http_server import HttpServer, kubeconfig

#: Bars: seconds from start to ready, and MB of memory.
READY, MEMORY = 30.0, 2_000


@asynccontextmanager
async def process(*command: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process that is ended at the end."""
    found = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        yield found
    finally:
        if found.returncode is None:
            found.terminate()
        await found.wait()


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def usage(pid: int) -> dict[str, float]:
    """CPU seconds and MB of a process until now, by the kernel."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    megabytes = {name: int(status[name].split()[0]) / 1024 for name in ("VmRSS", "VmHWM")}
    cpu = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return {"cpu_s": cpu, "resident_mb": megabytes["VmRSS"], "peak_mb": megabytes["VmHWM"]}


async def until_promised(port: int, pods: int, alive: Callable[[], bool]) -> None:
    """Waits until the controller counts the slices of so many pods."""
    async with aiohttp.ClientSession() as session:
        while alive():
            await asyncio.sleep(0.2)
            try:
                async with session.get(f"http://127.0.0.1:{port}/metrics") as answer:
                    text = await answer.text()
                    if answer.status != 200:
                        raise SystemExit(f"/metrics of the controller: status {answer.status}: {text.strip()}")
            except aiohttp.ClientError:
                continue
            rows = [line.split() for line in text.splitlines() if line.startswith("tessera_slices_promised ")]
            if rows and float(rows[0][1]) >= pods:
                return
    raise SystemExit("the controller ended; see its errors above")


def row(name: str, began: float, pid: int, ready: float) -> dict[str, Any]:
    """One row of the table; ``ready`` is the time at which the process was ready."""
    found = {"row": name, "ready_s": ready - began, **usage(pid)}
    print(
        f"{name:<10}{found['ready_s']:>9.1f}{found['cpu_s']:>9.1f}{found['resident_mb']:>13.0f}{found['peak_mb']:>10.0f}",
        flush=True,
    )
    return found


async def measure(given: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """Runs the three rows."""
    cluster = Cluster(given.nodes, given.pods)
    await cluster.fill()
    front = HttpServer(cluster.server, None)
    await front.start()
    config = folder / "kubeconfig"
    config.write_text(kubeconfig(front.url, None, None, token=TOKEN))
    command = [sys.executable, "-m", "tessera", "controller", "--kubeconfig", str(config), "--no-leader-election"]
    command += ["--http-port", str(given.port), "--metrics-access", "open", "--record", "0"]
    rows = []
    print(f"{given.nodes:,} nodes of {CARDS} cards, {given.pods:,} pods; load {os.getloadavg()[0]:.1f} at the start")
    print(f"{'row':<10}{'ready s':>9}{'CPU s':>9}{'resident MB':>13}{'peak MB':>10}")
    began = time.monotonic()
    async with process(*command) as controller:
        opened, ended = asyncio.create_task(cluster.opened.wait()), asyncio.create_task(controller.wait())
        await asyncio.wait({opened, ended}, return_when=asyncio.FIRST_COMPLETED)
        if ended.done():
            raise SystemExit("the controller ended; see its errors above")
        ended.cancel()
        rows.append(row("flood", began, controller.pid, time.monotonic()))
    cluster.bind()
    began = time.monotonic()
    async with process(*command) as controller:
        await until_promised(given.port, given.pods, lambda: controller.returncode is None)
        rows.append(row("restart", began, controller.pid, time.monotonic()))
    began = time.monotonic()
    async with process(sys.executable, "-m", "bench.large", "--read", front.url) as reader:
        assert reader.stdout is not None
        await reader.stdout.readline()
        rows.append(row("reader", began, reader.pid, time.monotonic()))
    await front.close()
    return rows


async def read(url: str) -> None:
    """Lists the objects, keeps them decoded, says so, and waits to be ended."""
    paths = ("api/v1/nodes", "api/v1/pods", "apis/inference.redhat.com/v1alpha1/instaslices")
    kept = []
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {TOKEN}"}) as session:
        for path in paths:
            follow = "first"
            while follow:
                more = "" if follow == "first" else f"&continue={follow}"
                async with session.get(f"{url}/{path}?limit=500{more}") as answer:
                    page = msgspec.json.decode(await answer.read())
                kept += page["items"]
                follow = page["metadata"].get("continue", "")
    print(len(kept), flush=True)
    await asyncio.sleep(3_600)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=5_000)
    parser.add_argument("--pods", type=int, default=20_000)
    parser.add_argument("--port", type=int, default=free_port(), help="port of the controller's metrics")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here as well")
    parser.add_argument("--read", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.read:
        asyncio.run(read(given.read))
        return
    with tempfile.TemporaryDirectory() as folder:
        rows = asyncio.run(measure(given, Path(folder)))
    restart = next(each for each in rows if each["row"] == "restart")
    print(f"bars of a restart: ready within {READY:.0f} s ({restart['ready_s']:.1f}),", end=" ")
    print(f"below {MEMORY:,} MB ({max(each['peak_mb'] for each in rows[:2]):,.0f} at the peak)")
    print(f"load of the machine {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    if given.json:
        figures = {"nodes": given.nodes, "pods": given.pods, "load_average": os.getloadavg(), "rows": rows}
        given.json.write_text(json.dumps(figures, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
