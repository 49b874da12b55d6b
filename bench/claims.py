"""A burst of pods with a resource claim each: how fast their claims are placed, by whom, and at what cost.

    python -m bench.claims                                 1, 10 and 50 nodes, each placed by all: some minutes
    python -m bench.claims --nodes 50 --placed-by stock    one row
    python -m bench.claims --nodes 1 --placed-by own --slice-seconds 0.3     56 claims of one node at once
    python -m bench.claims --nodes 1000 --pods 20 --placed-by stock,controller,written
    python -m bench.claims --packing                       memory slots in use under churn, by who places
    python -m bench.claims --json claims.json

Who places:

- ``stock``: the scheduler's structured allocator. Devices have no taint.
- ``own``: Tessera's controller and webhook, with one agent a node that publishes the devices and makes the slices.
- ``controller``: Tessera's controller alone, as ``stock`` without kubelets and agents; the manifests have the gate.
- ``ungated``: as ``own`` without the webhook's gate: first the scheduler tries to allocate the claims, in vain.
- ``limits``: as ``own`` without claims: the pods ask by ``nvidia.com/mig-1g.5gb``, and kubelet by the device plugin.
- ``written``: allocations that are written for gated pods, by a writer that knows a free device without a search:
  finalizer, allocation, gate. So it is the least that a placement of our own costs, and leaves out what its decision
  costs. Devices have the taint that keeps the stock allocator off.

The nodes have 8 A100-40GB each, published as the agent publishes them; each pod asks for one 1g.5gb. Only with ``own``
and ``limits`` there are kubelets and agents, which cost time in this process too, and make writes.
A pod's time is from the moment its create is sent until a watcher sees its node. *writes* are those for one pod until
the cluster is quiet, without the create and Events; *own* are those of who places, and of agents. *prepare p99* is that
of the agents' answers to kubelet, with the time that a card needs for a slice (``--slice-seconds``). *ms* are CPU
milliseconds a pod by part, sampled.

What is simulated: API server, scheduler, claim controller, kubelets and cards, all in this process. So rates are those
of Python on this machine, one core of it, and no forecast for a cluster; kube-scheduler's allocator is faster by
itself. What holds there too is how the cost grows with the nodes, and the number of writes. On a real server 1.36.2
with the same devices, 200 pods on 50 nodes were bound at 0.66 a second by the stock allocator, and at 10.4 a second by
written allocations.
"""

import argparse
import asyncio
import json
import os
import random
import resource
import signal
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import uvloop
from bench.churn import MIXES, Cell, simulate
from bench.claim_clusters import CREATORS, NAMESPACE, PLACINGS, PROFILE, ROOM, TIMEOUT, Json, Placing
from bench.rivals import PRODUCTION
from tests.support.device_claims import profile_class

from tessera.api.names import (
    GATE,
    resource_of,
)
from tessera.claims.agent.claim_driver import ClaimDriver
from tessera.cli.base.process import reduce_garbage_collection
from tessera.clock import SystemClock
from tessera.dra.node_devices import DRIVER
from tessera.kube.cache import WatchEvent
from tessera.kube.client import Client
from tessera.kube.informer import Informer, InformerGroup
from tessera.kube.resources import PODS, Pod
from tessera.kubelet.interfaces import ClaimRef, PreparedDevice
from tessera_lab.cluster.cluster import SimulatedCluster
from tessera_lab.scheduler.claim_binding import (
    DEVICE_CLASSES,
    RESOURCE_CLAIM_TEMPLATES,
)

#: Most pods of a burst if none are asked for.
PODS_AT_MOST = 200
#: Seconds without a write after which the cluster counts as quiet.
QUIET = 1.0


# The burst


def pod(name: str, placing: Placing) -> Json:
    """A pod that asks for a slice."""
    asked: Json = {"limits": {resource_of(PROFILE): "1"}} if placing.limits else {"claims": [{"name": "slice"}]}
    spec: Json = {
        "containers": [{"name": "c", "image": "busybox", "command": ["sleep", "infinity"], "resources": asked}]
    }
    spec["terminationGracePeriodSeconds"] = 0
    if not placing.limits:
        spec["resourceClaims"] = [{"name": "slice", "resourceClaimTemplateName": "one"}]
    if placing.gated:
        spec["schedulingGates"] = [{"name": GATE}]
    return {"metadata": {"name": name}, "spec": spec}


def count_writes(cluster: SimulatedCluster, *, own: bool = False) -> int:
    """Writes since the audit log was cleared, without Events and Leases; ``own``: none of Kubernetes' parts."""
    others, parts = {"events", "leases.coordination.k8s.io"}, ("system:kube-", "system:node:") if own else ()
    writes = (each for each in cluster.server.audit if each.is_write and each.resource not in others)
    return sum(not each.user.startswith(parts) for each in writes)


#: The parts of the cluster, by the folder of the innermost function that is theirs. A client's own work is nobody's.
PARTS = {
    "/tessera_lab/apiserver/": "API server",
    "/tessera_lab/scheduler/": "scheduler",
    "/tessera_lab/workloads/": "controller manager",
    "/tessera_lab/kubelet/": "kubelets",
    "/tessera/claims/agent/": "agents",
    "/tessera/agent/": "agents",
    "/tessera/claims/": "controller",
    "/tessera/controller/": "controller",
    "/tessera/placement/": "controller",
    "/tessera/forecast/": "controller",
    "/tessera/webhook/": "webhook",
}
#: Seconds of CPU time between two samples; the kernel's tick bounds it below.
SAMPLE = 0.001


class PartSampler:
    """Samples which part of the cluster uses the CPU.

    Attributes:
        samples: by part.
    """

    def __init__(self) -> None:
        self.samples: Counter[str] = Counter()
        self._part_of: dict[str, str] = {}

    def shares(self) -> dict[str, float]:
        """The share of each part in all samples."""
        return {name: count / self.samples.total() for name, count in self.samples.most_common()}

    @contextmanager
    def running(self) -> Iterator[None]:
        """Samples in this block."""
        before = signal.signal(signal.SIGPROF, self._take)
        signal.setitimer(signal.ITIMER_PROF, SAMPLE, SAMPLE)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0.0)
            signal.signal(signal.SIGPROF, before)

    def _take(self, _number: int, frame: FrameType | None) -> None:
        part = ""
        while frame is not None and not part:
            part = self._find(frame.f_code.co_filename)
            frame = frame.f_back
        self.samples[part or "clients"] += 1

    def _find(self, file: str) -> str:
        if file not in self._part_of:
            self._part_of[file] = next((part for folder, part in PARTS.items() if folder in file), "")
        return self._part_of[file]


@contextmanager
def timed_prepares() -> Iterator[list[float]]:
    """Notes the seconds that each answer of an agent to NodePrepareResources takes, for one claim."""
    took: list[float] = []
    prepare, clock = ClaimDriver.prepare, SystemClock()

    async def timed(driver: ClaimDriver, claim: ClaimRef) -> Sequence[PreparedDevice]:
        began = clock.monotonic()
        try:
            return await prepare(driver, claim)
        finally:
            took.append(clock.monotonic() - began)

    setattr(ClaimDriver, "prepare", timed)  # noqa: B010 - mypy refuses to assign a method
    try:
        yield took
    finally:
        setattr(ClaimDriver, "prepare", prepare)  # noqa: B010


def cpu_seconds() -> float:
    """CPU seconds of this process so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def measure(nodes: int, pods: int, placing: Placing, seed: int, slice_seconds: float = 0.0) -> dict[str, float]:
    """One burst on a fresh cluster."""
    clock, bound, sent = SystemClock(), dict[str, float](), dict[str, float]()

    def seen(event: WatchEvent[Pod]) -> None:
        if event.object.spec.node_name:
            bound.setdefault(event.object.metadata.name, clock.monotonic())

    waiting = [f"p{number}" for number in reversed(range(pods))]

    async def create(client: Client) -> None:
        while waiting:
            name = waiting.pop()
            sent[name] = clock.monotonic()
            await client.create(PODS.as_dicts(), pod(name, placing), NAMESPACE)

    async with AsyncExitStack() as stack:
        prepares = stack.enter_context(timed_prepares())
        cluster = await stack.enter_async_context(placing.cluster(nodes, slice_seconds=slice_seconds))
        client = cluster.client("bench")
        mirror = Informer(client, PODS, clock=clock, rng=random.Random(seed), namespace=NAMESPACE)
        mirror.add_handler(seen)
        wanted = profile_class(DRIVER, PROFILE)
        await client.create(DEVICE_CLASSES, wanted)
        query = {"name": "slice", "exactly": {"deviceClassName": wanted["metadata"]["name"]}}
        template = {"metadata": {"name": "one"}, "spec": {"spec": {"devices": {"requests": [query]}}}}
        await client.create(RESOURCE_CLAIM_TEMPLATES, template, NAMESPACE)
        group = InformerGroup(mirror)
        await stack.enter_async_context(group.running())
        await clock.sleep(0.5)
        cluster.server.audit.clear()
        before, sampler = cpu_seconds(), PartSampler()
        with sampler.running():
            await asyncio.gather(*(create(client) for _ in range(CREATORS)))
            await group.wait_until(lambda: len(bound) == pods, TIMEOUT, "all pods have a node")
        spent, seen_writes = cpu_seconds() - before, -1
        while seen_writes != (writes := count_writes(cluster)):
            seen_writes = writes
            await clock.sleep(QUIET)
        own_writes = count_writes(cluster, own=True)
    took = sorted(bound[name] - sent[name] for name in bound)
    return {
        "bound/s": pods / (max(bound.values()) - min(sent.values())),
        "p50 s": took[pods // 2],
        "p99 s": took[int(pods * 0.99)],
        "CPU ms a pod": spent / pods * 1000,
        "writes a pod": writes / pods - 1,
        "own writes": own_writes / pods - 1,
        **({"prepare p99 s": sorted(prepares)[int(len(prepares) * 0.99)]} if prepares else {}),
        **{f"{part} ms": share * spent / pods * 1000 for part, share in sampler.shares().items()},
    }


# Packing


def packing(cards: int, seed: int) -> list[dict[str, Any]]:
    """The share of memory slots in use under churn (bench/churn.py), by who places, for each mix of sizes."""
    rules = {"own": PRODUCTION, "stock": "device-order"}
    return [
        {
            "placed by": name,
            **{
                mix: simulate(Cell(cards, "exponential", 1.0, mix, rule, seed, max(12_000, 94 * cards))).alloc
                for mix in MIXES
            },
        }
        for name, rule in rules.items()
    ]


# What is shown


def table(rows: list[dict[str, Any]]) -> None:
    """One line a burst."""
    names = list(dict.fromkeys(name for row in rows for name in row["figures"]))
    widths = {name: max(8, len(name) + 2) for name in names}
    print(f"{'nodes':>6}{'pods':>6}  {'placed by':<10}" + "".join(f"{name:>{widths[name]}}" for name in names))
    for row in rows:
        cells = "".join(f"{row['figures'].get(name, 0.0):>{widths[name]}.2f}" for name in names)
        print(f"{row['nodes']:>6}{row['pods']:>6}  {row['placed by']:<10}{cells}")


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", default="1,10,50", help="numbers of nodes, a row for each")
    parser.add_argument("--pods", type=int, help=f"default: {PODS_AT_MOST}, or what the nodes have room for")
    parser.add_argument("--placed-by", default=",".join(PLACINGS), metavar="NAME[,NAME]", help="default: %(default)s")
    parser.add_argument("--slice-seconds", type=float, default=0.0, help="that a card needs to make a slice")
    parser.add_argument("--packing", type=int, metavar="CARDS", const=256, nargs="?", help="measure packing instead")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the figures here")
    given = parser.parse_args()
    chosen = given.placed_by.split(",")
    if unknown := sorted(set(chosen) - PLACINGS.keys()):
        parser.error(f"--placed-by: {', '.join(unknown)}; there are {', '.join(PLACINGS)}")
    if given.packing:
        print(f"% of memory slots in use under churn, {given.packing} cards, load 1.0, by the planner alone")
        for found in packing(given.packing, given.seed):
            print(f"{found.pop('placed by'):<8}" + "".join(f"  {mix} {share:.1f}" for mix, share in found.items()))
        return
    load = os.getloadavg()[0]
    reduce_garbage_collection()
    rows: list[dict[str, Any]] = []
    for nodes in map(int, given.nodes.split(",")):
        pods = min(given.pods or PODS_AT_MOST, nodes * ROOM)
        for name in chosen:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                figures = runner.run(measure(nodes, pods, PLACINGS[name], given.seed, given.slice_seconds))
            rows.append({"nodes": nodes, "pods": pods, "placed by": name, "figures": figures})
    print(f"simulated cluster in this process; {os.cpu_count()} cores, load {load:.1f} at the start")
    table(rows)
    if given.json:
        machine = {"cores": os.cpu_count(), "load": load, "python": sys.version.split()[0]}
        given.json.write_text(json.dumps({"seed": given.seed, "machine": machine, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
