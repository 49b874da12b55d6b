"""A burst of pods that ask for slices, on a simulated cluster: how long until each is ungated, and what it costs.

Everything runs in this one process: API server, scheduler, kubelets, and Tessera's webhook, controller and one agent a
node, so the CPU time is that of the whole simulated cluster. The same number of pods without GPUs on the same cluster
is measured first, as what the simulated control plane costs by itself.

The mix is the one called "mid" in the placement benchmark: 1g .20, 1g double memory .10, 2g .30, 3g .30, 4g .10.
"""

import argparse
import asyncio
import json
import random
import resource
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import uvloop

from tessera.api.instaslice import INSTASLICES
from tessera.api.names import GATE, INSTASLICE_NAMESPACE, resource_of
from tessera.cli import agent, controller, webhook
from tessera.clock import SystemClock
from tessera.kube.cache import Event
from tessera.kube.informer import Informer
from tessera.kube.resources import PODS, Pod
from tessera.lab.cluster import Cluster, ClusterOptions
from tessera.lab.install import Commands, entrypoint, install
from tessera.lab.nodespec import parse_nodes
from tessera.lab.until import Watched

MIX = {"1g.5gb": 0.20, "1g.10gb": 0.10, "2g.10gb": 0.30, "3g.20gb": 0.30, "4g.20gb": 0.10}
#: How many creations are under way at once, as a workload controller's burst would have.
CREATORS = 20
PATIENCE = 600.0


class Watch:
    """When each pod was created, ungated and running, in seconds of the clock."""

    def __init__(self, clock: SystemClock) -> None:
        self._clock = clock
        self.created: dict[str, float] = {}
        self.ungated: dict[str, float] = {}
        self.running: dict[str, float] = {}

    def seen(self, event: Event[Pod]) -> None:
        """A change of a pod."""
        pod, now = event.object, self._clock.monotonic()
        if not any(gate.name == GATE for gate in pod.spec.scheduling_gates):
            self.ungated.setdefault(pod.metadata.name, now)
        if pod.status.phase == "Running":
            self.running.setdefault(pod.metadata.name, now)

    def times(self, reached: Mapping[str, float], names: Sequence[str]) -> list[float]:
        """Seconds from creation, sorted."""
        return sorted(reached[name] - self.created[name] for name in names)


def pod(name: str, limits: Mapping[str, int]) -> dict[str, Any]:
    """A pod of one container that stays."""
    container = {"name": "c", "image": "busybox", "command": ["sleep", "infinity"], "resources": {"limits": limits}}
    return {"metadata": {"name": name}, "spec": {"terminationGracePeriodSeconds": 0, "containers": [container]}}


async def burst(cluster: Cluster, watch: Watch, pods: Sequence[dict[str, Any]]) -> None:
    """Creates the pods as fast as the API server takes them."""
    client = cluster.client("bench")
    waiting = list(reversed(pods))

    async def creator() -> None:
        while waiting:
            each = waiting.pop()
            watch.created[each["metadata"]["name"]] = cluster.clock.monotonic()
            await client.create(PODS.untyped(), each, "default")

    await asyncio.gather(*(creator() for _ in range(CREATORS)))


def figures(values: Sequence[float], seconds: float) -> dict[str, float]:
    """Median, 99th percentile and rate of one run."""
    return {
        "p50_ms": round(values[len(values) // 2] * 1000, 1),
        "p99_ms": round(values[int(len(values) * 0.99)] * 1000, 1),
        "pods_per_second": round(len(values) / seconds, 1),
    }


async def measure(nodes: int, cards: int, count: int, seed: int) -> dict[str, Any]:
    """Both bursts on one cluster."""
    clock, rng = SystemClock(), random.Random(seed)
    commands = Commands(agent=agent.parsed, controller=controller.parsed, webhook=webhook.parsed)
    with tempfile.TemporaryDirectory() as top:
        cluster = Cluster(
            parse_nodes(f"{nodes}*{cards}xA100-40GB"),
            clock=clock,
            options=ClusterOptions(cdi=Path(top), seed=seed),
            entrypoint=entrypoint(commands),
        )
        async with cluster.running():
            client = cluster.client("bench")
            pods = Informer(client, PODS, clock=clock, rng=rng, namespace="default")
            slices = Informer(client, INSTASLICES, clock=clock, rng=rng, namespace=INSTASLICE_NAMESPACE)
            watched = Watched(pods, slices)
            started = clock.monotonic()
            await install(client)
            async with watched.running():
                await watched.until(lambda: len(slices.cache) == nodes or None, PATIENCE, "all nodes have joined")
                print(f"{nodes} nodes joined after {clock.monotonic() - started:.1f} s")
                plain = await run(cluster, watched, pods, [pod(f"plain-{n}", {}) for n in range(count)])
                chosen = rng.choices(list(MIX), list(MIX.values()), k=count)
                asking = [pod(f"slice-{n}", {resource_of(name): 1}) for n, name in enumerate(chosen)]
                sliced = await run(cluster, watched, pods, asking)
    return {"nodes": nodes, "cards_per_node": cards, "pods": count, "plain": plain, "slices": sliced}


async def run(
    cluster: Cluster, watched: Watched, informer: Informer[Pod], pods: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """One burst, from the first create until all pods run."""
    clock = SystemClock()
    watch = Watch(clock)
    informer.add_handler(watch.seen)
    names = [each["metadata"]["name"] for each in pods]
    cluster.server.audit.clear()
    cpu, started = cpu_seconds(), clock.monotonic()
    await burst(cluster, watch, pods)
    await watched.until(lambda: watch.running.keys() >= set(names) or None, PATIENCE, "all pods run")
    last = max(watch.ungated[name] for name in names)
    calls = [entry for entry in cluster.server.audit if "tessera-" in entry.user]
    return {
        "create_to_ungated": figures(watch.times(watch.ungated, names), last - started),
        "create_to_running": figures(watch.times(watch.running, names), clock.monotonic() - started),
        "tessera_api_calls_per_pod": round(len(calls) / len(pods), 2),
        "tessera_api_writes_per_pod": round(sum(entry.is_write for entry in calls) / len(pods), 2),
        "cpu_seconds": round(cpu_seconds() - cpu, 2),
    }


def cpu_seconds() -> float:
    """CPU time of this process so far."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--cards", type=int, default=8, help="cards per node")
    parser.add_argument("--pods", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    given = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        result = runner.run(measure(given.nodes, given.cards, given.pods, given.seed))
    print(f"\nburst of {given.pods} pods on {given.nodes} simulated nodes x {given.cards} cards, one process")
    print(f"{'':34}{'plain pods':>12}{'with slices':>13}{'ratio':>8}")
    for group in ("create_to_ungated", "create_to_running"):
        for name in ("p50_ms", "p99_ms", "pods_per_second"):
            row(f"{group.replace('_', ' ')} {name}", result["plain"][group][name], result["slices"][group][name])
    for name in ("tessera_api_calls_per_pod", "tessera_api_writes_per_pod", "cpu_seconds"):
        row(name.replace("_", " "), result["plain"][name], result["slices"][name])
    if given.json:
        given.json.write_text(json.dumps(result, indent=2) + "\n")


def row(name: str, plain: float, sliced: float) -> None:
    """One line of the table."""
    ratio = f"{sliced / plain:7.2f}x" if plain else ""
    print(f"{name:34}{plain:12,.1f}{sliced:13,.1f}{ratio:>8}")


if __name__ == "__main__":
    main()
