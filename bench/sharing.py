"""Sharing and layouts: from a node's label to its allocatable, start of an agent, and its memory.

    python bench/sharing.py                          one node of 8 simulated A100, 100 changes
    python bench/sharing.py --changes 20 --json sharing.json

API server, kubelet and cards are simulated, in a process of their own; cards answer at once. The agent is the real
process and talks to both over sockets. A change counts from the patch of the label (or of the ConfigMap) until the
Node's watch shows the allocatable that follows from it. "restart" is what follows the same label by starting the agent
anew, as a device plugin does that reads its configuration when it starts.
"""

import argparse
import asyncio
import json
import os
import platform
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from tessera.cli.base.kubeconfig import load_config
from tessera.clock import SystemClock
from tessera.doctor.manifests import install_manifests
from tessera.kube.cache import WatchEvent
from tessera.kube.client import Client
from tessera.kube.http import HttpTransport
from tessera.kube.informer import Informer
from tessera.kube.resources import CONFIGMAPS, CRDS, NAMESPACES, NODES, Node
from tessera.kube.resources.meta import Resource
from tessera_lab.daemon import lab_folder

NODE = "node-1"
NAMESPACE = "kube-system"
PROFILE, LAYOUT = "nvidia.com/device-plugin.config", "nvidia.com/mig.config"
#: Seconds after which a change counts as lost.
TIMEOUT = 60.0

#: What an agent needs of deploy/ when it runs beside the cluster.
_KINDS: Mapping[str, Resource[Any]] = {"Namespace": NAMESPACES, "CustomResourceDefinition": CRDS}

Counts = Mapping[str, int]


def profile(replicas: int) -> str:
    """A sharing profile of so many time slices a card."""
    block = {"renameByDefault": True, "resources": [{"name": "nvidia.com/gpu", "replicas": replicas}]}
    return yaml.safe_dump({"version": "v1", "sharing": {"timeSlicing": block}})


PROFILES = {"whole": "version: v1\n", "slice-4": profile(4), "slice-10": profile(10)}
LAYOUTS = yaml.safe_dump(
    {
        "version": "v1",
        "mig-configs": {
            "2x2g.10gb-3x1g.5gb": [
                {"devices": "all", "mig-enabled": True, "mig-devices": {"1g.5gb": 3, "2g.10gb": 2}},
            ]
        },
    }
)


class Bench:
    """One lab, one agent, one watch on the node."""

    def __init__(self, state: lab_folder.LabState, client: Client, cards: int) -> None:
        self.client = client
        self.cards = cards
        self._env = {**os.environ, "KUBECONFIG": state.kubeconfig}
        self._folder = Path(state.kubeconfig).parent
        self._log = (self._folder / "agent.log").open("ab")
        self._allocatable: dict[str, int] = {}
        self._waiters: set[asyncio.Event] = set()
        self._lowest: dict[str, int] = {}
        self.agent: subprocess.Popen[bytes] | None = None

    def start(self) -> float:
        """Starts the agent; returns when."""
        node = self._folder / "n" / NODE
        command = [
            *(sys.executable, "-m", "tessera", "agent", "--node-name", NODE),
            *("--simulate", f"{self.cards}xA100-40GB", "--simulated-state", str(node / "cards.json")),
            *("--plugin-dir", str(node / "dp"), "--pod-resources-dir", str(node / "pr")),
            *("--cdi-dir", str(node / "cdi"), "--state-dir", str(node / "state")),
            *("--sharing-config", f"{NAMESPACE}/profiles", "--mig-config", f"{NAMESPACE}/layouts"),
        ]
        began = time.monotonic()
        self.agent = subprocess.Popen(command, env=self._env, stdout=self._log, stderr=self._log)
        return began

    def stop(self) -> None:
        """Ends the agent's process as Kubernetes does."""
        if self.agent is not None:
            self.agent.terminate()
            self.agent.wait()
            self.agent = None

    def resident_mib(self) -> float:
        """Memory of the agent that is in RAM now, MiB."""
        assert self.agent is not None
        status = Path(f"/proc/{self.agent.pid}/status").read_text(encoding="ascii")
        (line,) = (line for line in status.splitlines() if line.startswith("VmRSS:"))
        return int(line.split()[1]) / 1024

    def node_seen(self, event: WatchEvent[Node]) -> None:
        """Takes in what the watch shows."""
        told = event.object.status.allocatable
        self._allocatable = {name: int(text) for name, text in told.items() if name.startswith("nvidia.com/")}
        for name, count in self._allocatable.items():
            self._lowest[name] = min(count, self._lowest.get(name, count))
        for waiter in self._waiters:
            waiter.set()

    async def until(self, wanted: Counts) -> None:
        """Returns when the node offers just this; a resource that is at 0 counts as gone."""
        waiter = asyncio.Event()
        self._waiters.add(waiter)
        try:
            async with asyncio.timeout(TIMEOUT):
                while {name: count for name, count in self._allocatable.items() if count} != dict(wanted):
                    waiter.clear()
                    await waiter.wait()
        finally:
            self._waiters.discard(waiter)

    async def label(self, key: str, value: str | None) -> None:
        """Sets or removes a label of the node."""
        await self.client.merge_patch(NODES, NODE, {"metadata": {"labels": {key: value}}})

    async def changed(self, change: Callable[[], Any], wanted: Counts) -> float:
        """Seconds from a change until the node offers what follows from it."""
        self._lowest = {}
        began = time.monotonic()
        await change()
        await self.until(wanted)
        return time.monotonic() - began

    def lowest(self, resource: str) -> int:
        """The least of a resource that was offered during the last change."""
        return self._lowest.get(resource, self._allocatable.get(resource, 0))


@asynccontextmanager
async def bench_lab(cards: int) -> AsyncIterator[Bench]:
    """A lab without Tessera and an agent beside it; the cards belong to nobody yet."""
    top = Path(tempfile.mkdtemp(prefix="tb-", dir="/tmp"))
    nodes = f"{cards}xA100-40GB"
    state = lab_folder.start(top / "lab", ["--nodes", nodes, "--no-tessera", "--mig-config", ""])
    clock = SystemClock()
    client = Client(
        HttpTransport(load_config(clock=clock, kubeconfig=state.kubeconfig)), field_manager="bench", clock=clock
    )
    bench = Bench(state, client, cards)
    nodes_seen = Informer(client, NODES, field_selector=f"metadata.name={NODE}", clock=clock, rng=random.Random(0))
    nodes_seen.add_handler(bench.node_seen)
    watch = asyncio.create_task(nodes_seen.run())
    try:
        for each in install_manifests():
            if each["kind"] in {"Namespace", "CustomResourceDefinition"}:
                await client.apply(_KINDS[each["kind"]].as_dicts(), each["metadata"]["name"], each)
        await client.create(CONFIGMAPS.as_dicts(), {"metadata": {"name": "profiles"}, "data": PROFILES}, NAMESPACE)
        layouts = {"metadata": {"name": "layouts"}, "data": {"config.yaml": LAYOUTS}}
        await client.create(CONFIGMAPS.as_dicts(), layouts, NAMESPACE)
        yield bench
    finally:
        watch.cancel()
        bench.stop()
        await client.close()
        lab_folder.stop(top / "lab")
        shutil.rmtree(top, ignore_errors=True)


def gpus(count: int) -> Counts:
    """Whole cards."""
    return {"nvidia.com/gpu": count}


def shares(count: int) -> Counts:
    """Time slices under their own name."""
    return {"nvidia.com/gpu.shared": count}


async def starts(bench: Bench, count: int) -> list[float]:
    """Seconds from the start of the process until the node offers its cards."""
    found = []
    for _ in range(count):
        bench.stop()
        await bench.until({})
        began = bench.start()
        await bench.until(gpus(bench.cards))
        found.append(time.monotonic() - began)
    return found


async def profile_changes(bench: Bench, count: int) -> tuple[list[float], int]:
    """Seconds of changes of the profile's label, and how many showed less than before and after in between."""
    cards, found, dips = bench.cards, [], 0
    steps = [("slice-4", shares(4 * cards)), ("slice-10", shares(10 * cards)), ("whole", gpus(cards))]
    for number in range(count):
        name, wanted = steps[number % len(steps)]
        found.append(await bench.changed(partial(bench.label, PROFILE, name), wanted))
        dips += name == "slice-10" and bench.lowest("nvidia.com/gpu.shared") < 4 * cards
    return found, dips


async def content_changes(bench: Bench, count: int) -> tuple[list[float], int]:
    """Seconds of changes of the ConfigMap's content under the same label, and the dips."""
    cards, found, dips, before = bench.cards, [], 0, 4
    await bench.changed(lambda: bench.label(PROFILE, "slice-4"), shares(4 * cards))
    for number in range(count):
        replicas = 5 + number % 6
        patch = {"data": {"slice-4": profile(replicas)}}
        change = partial(bench.client.merge_patch, CONFIGMAPS, "profiles", patch, NAMESPACE)
        found.append(await bench.changed(change, shares(replicas * cards)))
        dips += bench.lowest("nvidia.com/gpu.shared") < min(before, replicas) * cards
        before = replicas
    await bench.client.merge_patch(CONFIGMAPS, "profiles", {"data": {"slice-4": PROFILES["slice-4"]}}, NAMESPACE)
    await bench.changed(lambda: bench.label(PROFILE, "whole"), gpus(cards))
    return found, dips


async def layout_changes(bench: Bench, count: int) -> list[float]:
    """Seconds of changes of the layout's label."""
    cards, found = bench.cards, []
    steps: list[tuple[str, Counts]] = [
        ("2x2g.10gb-3x1g.5gb", {"nvidia.com/mig-1g.5gb": 3 * cards, "nvidia.com/mig-2g.10gb": 2 * cards}),
        ("all-1g.5gb", {"nvidia.com/mig-1g.5gb": 7 * cards}),
        ("all-disabled", gpus(cards)),
    ]
    for number in range(count):
        name, wanted = steps[number % len(steps)]
        found.append(await bench.changed(partial(bench.label, LAYOUT, name), wanted))
    return found


async def restarts(bench: Bench, count: int) -> list[float]:
    """Seconds of the same changes of the profile when the agent follows them by starting anew."""
    cards, found = bench.cards, []
    steps = [("slice-4", shares(4 * cards)), ("slice-10", shares(10 * cards)), ("whole", gpus(cards))]
    for number in range(count):
        name, wanted = steps[number % len(steps)]
        began = time.monotonic()
        bench.stop()
        await bench.label(PROFILE, name)
        bench.start()
        await bench.until(wanted)
        found.append(time.monotonic() - began)
    return found


def row(name: str, times: Sequence[float]) -> dict[str, Any]:
    """Median, 99th percentile (the worst one below 100 changes) and the worst, milliseconds."""
    ordered = sorted(1000 * each for each in times)
    return {
        "what": name,
        "n": len(ordered),
        "p50_ms": round(statistics.median(ordered)),
        "p99_ms": round(ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]),
        "max_ms": round(ordered[-1]),
    }


async def measured(cards: int, changes: int) -> dict[str, Any]:
    """Everything, in one lab."""
    async with bench_lab(cards) as bench:
        rows = [row("agent start -> allocatable", await starts(bench, max(3, changes // 10)))]
        by_label, label_dips = await profile_changes(bench, changes)
        by_content, content_dips = await content_changes(bench, changes)
        rows += [row("profile's label", by_label), row("profile's content", by_content)]
        rows.append(row("profile's label, restart", await restarts(bench, max(3, changes // 10))))
        await bench.changed(lambda: bench.label(PROFILE, "whole"), gpus(cards))
        rows.append(row("layout's label", await layout_changes(bench, changes)))
        await bench.changed(lambda: bench.label(LAYOUT, "all-1g.5gb"), {"nvidia.com/mig-1g.5gb": 7 * cards})
        return {
            "simulated": "API server, kubelet, cards",
            "python": platform.python_version(),
            "load": os.getloadavg()[0],
            "cards": cards,
            "rows": rows,
            "dips": label_dips + content_dips,
            "restart_over_label_p50": round(rows[3]["p50_ms"] / max(1, rows[1]["p50_ms"]), 1),
            "resident_mib": round(bench.resident_mib(), 1),
            "mig_devices": 7 * cards,
        }


def show(found: dict[str, Any]) -> None:
    """The table."""
    print(f"simulated: {found['simulated']}; {found['cards']} cards; load {found['load']:.1f}")
    print(f"{'change':28} {'n':>4} {'p50 ms':>8} {'p99 ms':>8} {'max ms':>8}")
    for each in found["rows"]:
        print(f"{each['what']:28} {each['n']:4} {each['p50_ms']:8} {each['p99_ms']:8} {each['max_ms']:8}")
    print(f"a restart takes {found['restart_over_label_p50']} times as long as following the label (p50)")
    print(f"changes during which allocatable fell below both ends: {found['dips']}")
    print(f"agent resident with {found['mig_devices']} MIG devices: {found['resident_mib']} MiB")


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cards", type=int, default=8, help="cards of the node")
    parser.add_argument("--changes", type=int, default=100, help="changes of each kind")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    arguments = parser.parse_args()
    found = asyncio.run(measured(arguments.cards, arguments.changes))
    show(found)
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
