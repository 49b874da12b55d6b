"""CPU of `tessera top` on a large cluster: its share of one core while the table is live, and the cost of its start.

    python bench/top.py
    python bench/top.py --nodes 200 --seconds 120 --json top.json

The cluster is made up: nodes with 8 cards, each held by a pod, and other pods as large clusters have them. Another
process serves it over HTTP: the lab's API server, with pages as large as those of real agents, which change in every
sample. `tessera top` runs on a terminal of its own at its usual interval. CPU is user and system time of its process,
as the kernel counts it, from the first picture on.
"""

import argparse
import asyncio
import fcntl
import json
import os
import pty
import random
import select
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from tessera.api.nodes.usage import CardUsage, LeaseUsage, NodeUsage
from tessera.clock import SystemClock
from tessera.kube.client import Client
from tessera.kube.requests import Response
from tessera.kube.resources import NAMESPACES, PODS
from tessera.nvml.measurements import Quantity
from tessera_lab.apiserver.interfaces import UserInfo
from tessera_lab.apiserver.main.http_server import HttpServer, kubeconfig
from tessera_lab.apiserver.main.inprocess_transport import InProcessTransport
from tessera_lab.apiserver.main.server import ApiServer

CARDS = 8
#: The most that the live table may cost: a tenth of a core.
BAR = 0.1
#: Columns and lines of the terminal.
SIZE = 160, 50
TOKEN = "bench"
VIEWS = {"pods": ["top"], "cards": ["top", "--by", "cards"]}


def page(number: int, rng: random.Random) -> NodeUsage:
    """A node whose cards are held; what they measure is drawn."""
    cards = tuple(
        CardUsage(
            uuid=f"GPU-{number:04}-{index}-69539dab-1e0f-5341-a4a4",
            index=index,
            model="NVIDIA H100 80GB HBM3",
            slots=8,
            kind="whole",
            values={quantity.value: rng.random() * 1e9 for quantity in Quantity},
            processes=1,
        )
        for index in range(CARDS)
    )
    leases = tuple(
        LeaseUsage(
            namespace=f"team-{index}",
            pod=f"train-{number}-{index}",
            uid=f"uid-{number}-{index}",
            container="main",
            device=card.uuid,
            kind="whole",
            share=1.0,
            state="busy",
            evidence="up to 97% busy in the last 30 min",
            held=3600.0,
            memory=6e10,
            busy=rng.random(),
        )
        for index, card in enumerate(cards)
    )
    return NodeUsage(
        node=f"node-{number}", taken=time.time(), driver="580.95.05", cards=cards, leases=leases, simulated=True
    )


def pod(name: str, node: str, owner: tuple[str, str], labels: dict[str, str] | None = None) -> dict[str, Any]:
    """A pod as a cluster has it: some kilobytes."""
    container = {
        "name": "main",
        "image": "registry.example/team/image:v1",
        "command": ["python", "train.py"],
        "env": [{"name": f"VARIABLE_{n}", "value": "x" * 40} for n in range(20)],
        "resources": {"limits": {"cpu": "8", "memory": "64Gi"}},
    }
    reference = {"apiVersion": "apps/v1", "kind": owner[0], "name": owner[1], "uid": "u", "controller": True}
    return {
        "metadata": {"name": name, "labels": labels or {"app": "train"}, "ownerReferences": [reference]},
        "spec": {"nodeName": node, "containers": [container], "restartPolicy": "Never"},
    }


async def fill(server: ApiServer, nodes: int, others: int) -> dict[str, int]:
    """Makes the objects; returns the node's number by the address of its agent."""
    user = UserInfo(name="bench", groups=("system:masters", "system:authenticated"))
    client = Client(InProcessTransport(server, user), field_manager="bench", clock=SystemClock())
    for name in ("tessera-system", "others", *(f"team-{n}" for n in range(CARDS))):
        await client.create(NAMESPACES.as_dicts(), {"metadata": {"name": name}})
    addresses = {}
    for number in range(nodes):
        label = {"app.kubernetes.io/name": "tessera-agent"}
        agent = f"tessera-agent-{number}"
        await client.create(
            PODS.as_dicts(), pod(agent, f"node-{number}", ("DaemonSet", "tessera-agent"), label), "tessera-system"
        )
        address = f"10.0.{number // 250}.{number % 250 + 1}"
        await client.merge_patch(PODS, agent, {"status": {"podIP": address}}, "tessera-system", subresource="status")
        addresses[address] = number
        for index in range(CARDS):
            made = pod(f"train-{number}-{index}", f"node-{number}", ("Job", f"train-{number}"))
            await client.create(PODS.as_dicts(), made, f"team-{index}")
    for number in range(others):
        await client.create(PODS.as_dicts(), pod(f"other-{number}", "node-0", ("ReplicaSet", "web")), "others")
    return addresses


async def serve(nodes: int, others: int, file: Path) -> None:
    """Serves the cluster until the process ends; writes its kubeconfig to ``file`` once it is complete."""
    user = UserInfo(name="bench", groups=("system:masters", "system:authenticated"))
    server = ApiServer(SystemClock(), tokens={TOKEN: user})
    addresses, rng = await fill(server, nodes, others), random.Random(1)

    async def get(address: str, _port: int, _path: str, _headers: Mapping[str, str]) -> Response:
        body = msgspec.json.encode(page(addresses[address], rng))
        return Response(status=200, headers={"content-type": "application/json"}, body=body)

    server.parts.get_page = get
    front = HttpServer(server, None)
    await front.start()
    part = file.with_suffix(".part")
    part.write_text(kubeconfig(front.url, None, None, token=TOKEN))
    part.rename(file)
    await asyncio.Event().wait()


def measure(arguments: list[str], config: Path, seconds: float) -> dict[str, float]:
    """Runs the command on a terminal: CPU seconds until its first picture, and its share of a core after that."""
    outer, inner = pty.openpty()
    fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", SIZE[1], SIZE[0], 0, 0))
    command = [sys.executable, "-m", "tessera", *arguments]
    sized = {"COLUMNS", "LINES"}  # these would count more than the terminal's size
    env = {name: value for name, value in os.environ.items() if name not in sized}
    env |= {"KUBECONFIG": str(config), "TERM": "xterm"}
    process = subprocess.Popen(command, stdin=inner, stdout=inner, stderr=inner, env=env)
    os.close(inner)
    try:
        shown = b""
        while b"train-" not in shown and b"H100" not in shown:
            shown += os.read(outer, 1 << 16)
        began, start = time.monotonic(), cpu_seconds(process.pid)
        while (left := began + seconds - time.monotonic()) > 0:
            if select.select([outer], [], [], left)[0]:
                os.read(outer, 1 << 16)
        used, passed = cpu_seconds(process.pid) - start, time.monotonic() - began
    finally:
        process.kill()
        process.wait()
        os.close(outer)
    return {"start_cpu_seconds": start, "share_of_a_core": used / passed}


def cpu_seconds(pid: int) -> float:
    """User and system time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Measures both views and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=100, help="nodes with 8 cards each, a pod on each card")
    parser.add_argument("--others", type=int, default=2000, help="pods without cards")
    parser.add_argument("--seconds", type=float, default=30.0, help="time of each measurement")
    parser.add_argument("--serve", type=Path, metavar="FILE", help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path, help="write the figures here")
    given = parser.parse_args()
    if given.serve is not None:
        asyncio.run(serve(given.nodes, given.others, given.serve))
        return
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "kubeconfig"
        command = [sys.executable, __file__, "--serve", str(config)]
        server = subprocess.Popen([*command, "--nodes", str(given.nodes), "--others", str(given.others)])
        try:
            while not config.exists():
                if server.poll() is not None:
                    sys.exit("the server ended")
                time.sleep(0.2)
            rows = {name: measure(arguments, config, given.seconds) for name, arguments in VIEWS.items()}
        finally:
            server.kill()
            server.wait()
    load = os.getloadavg()[0]
    cards = given.nodes * CARDS
    print(
        f"tessera top: {given.nodes} nodes, {cards:,} cards, each held, {cards + given.others:,} pods; load {load:.1f}"
    )
    print(f"the bar is {BAR:.0%} of a core")
    print(f"{'view':<10}{'start, CPU s':>14}{'of a core':>12}")
    for name, row in rows.items():
        print(f"{name:<10}{row['start_cpu_seconds']:>14.2f}{row['share_of_a_core']:>12.1%}")
    if given.json is not None:
        given.json.write_text(json.dumps({"nodes": given.nodes, "cards": cards, "load": load, "rows": rows}) + "\n")


if __name__ == "__main__":
    main()
