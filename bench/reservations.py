"""What reservations cost and bring: slots in use and waits, with reservations off, after a minute, and always.

    python bench/reservations.py                             32 cards, load 0.9, two mixes, 3,000 pods
    python bench/reservations.py --cards 64 --pods 10000 --load 0.95 --deadlines 0.5 --json reservations.json

Pods arrive (Poisson), wait until the production slicer gives them slices, live (exponential, an hour in the mean) and
leave; none is lost. ``alloc%`` is the time average of memory slots in use between the first quarter of the arrivals and
the last arrival. ``wait`` is in minutes of simulated time. The API server and the agents answer at once.
"""

import argparse
import heapq
import json
import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from tessera.agent.inventory.sliceable_gpus import placements
from tessera.api.instaslice import AllocationStatus, Instaslice, make_result
from tessera.api.names import GATE, MIG_CONFIG_LABEL, NodeName, PodUid, resource_of
from tessera.clock import rfc3339
from tessera.controller.informers import unknown_owners
from tessera.controller.objects.node_info import NodeInfo
from tessera.controller.objects.pod_info import PodInfo, Workload
from tessera.controller.slicing.slicer import Slicer
from tessera.controller.slicing.state.events import (
    InstasliceObserved,
    NodeObserved,
    OwnerLookedUp,
    PodDeleted,
    PodObserved,
    TimePassed,
    WriteDone,
)
from tessera.controller.slicing.state.instructions import PatchRequests, RecordEvent, Ungate
from tessera.mig.models import model_by_short_name

PROFILES = ("1g.5gb", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb")
SIZES = (1, 2, 2, 4, 4, 8)
MIXES = {"uniform": (1 / 6,) * 6, "small": (0.50, 0.10, 0.25, 0.10, 0.03, 0.02)}
MODES: dict[str, float | None] = {"off": None, "60s": 60.0, "always": 0.0}
CARDS_PER_NODE, SLOTS, LIFE, BEGIN = 8, 8, 3600.0, 1_000_000.0
LARGE = "7g.40gb"


class Town:
    """A slicer whose API server and agents answer at once."""

    def __init__(self, cards: int, reserve_after: float | None, **options: Any) -> None:
        self.slicer = Slicer(reserve_after, **options)
        self.now = BEGIN
        self.pods: dict[PodUid, PodInfo] = {}
        #: Pods that have slices and have not been counted yet.
        self.started: list[PodUid] = []
        self._objects: dict[str, Instaslice] = {}
        self._version = 0
        for number in range(max(1, cards // CARDS_PER_NODE)):
            self._add_node(f"n{number}", min(cards, CARDS_PER_NODE))

    def _add_node(self, name: str, cards: int) -> None:
        model = model_by_short_name("A100-40GB")
        gpus = [{"gpuUuid": f"G-{name}-{i}", "gpuName": model.product_name, "gpuMemory": "1Mi"} for i in range(cards)]
        table = msgspec.to_builtins(placements(model.geometry))
        body = {
            "metadata": {"name": name, "namespace": "instaslice-system", "uid": name, "resourceVersion": "1"},
            "status": {"nodeResources": {"nodeGpus": gpus, "migPlacement": table, "bootId": "b"}},
        }
        self._objects[name] = msgspec.convert(body, Instaslice)
        devices = {resource_of(row.name): len(row.starts) * cards for row in model.geometry.profiles}
        node = NodeInfo(
            name=NodeName(name),
            hostname=name,
            labels={MIG_CONFIG_LABEL: "dynamic", "kubernetes.io/hostname": name},
            allocatable={"cpu": 1_000_000, "pods": 1_000, **devices},
        )
        self.slicer.handle(NodeObserved(node))
        self.slicer.handle(InstasliceObserved(self._objects[name]))

    def put(self, pod: PodInfo) -> None:
        """Creates or changes a pod."""
        self.pods[pod.uid] = pod
        self.slicer.handle(PodObserved(pod))

    def end(self, uid: PodUid) -> None:
        """A pod ends."""
        del self.pods[uid]
        self.slicer.handle(PodDeleted(uid))

    def settle(self, now: float) -> None:
        """Decides and writes until nothing is left to do."""
        self.now = now
        self.slicer.handle(TimePassed(now, now))
        while True:
            for owner in list(unknown_owners(self.slicer)):
                self.slicer.handle(OwnerLookedUp(owner, Workload(owner.uid, len(self.pods))))
            self.slicer.decide()
            writes = self.slicer.pop_writes()
            for write in writes:
                if isinstance(write, PatchRequests):
                    self._patch(write)
                elif isinstance(write, Ungate):
                    pod = self.pods[write.uid]
                    host = NodeName(write.hostname)
                    self.put(replace(pod, gates=(), hostname=host, node=host, started=now))
                    self.started.append(write.uid)
                if not isinstance(write, RecordEvent):
                    self.slicer.handle(WriteDone(write))
            if not writes and not self.slicer.has_work and not any(unknown_owners(self.slicer)):
                return

    def _patch(self, write: PatchRequests) -> None:
        """The request is stored, and the agent makes or removes the slices."""
        item = self._objects[write.node]
        requests, results = dict(item.spec.pod_allocation_requests), dict(item.status.pod_allocation_results)
        made = AllocationStatus(allocation_status_controller="ungated", allocation_status_daemonset="created")
        for uid, request in write.put.items():
            requests[uid] = request
            results[uid] = make_result(uid, write.node, request.slices, made)
        for uid in write.drop:
            requests.pop(uid, None)
            results.pop(uid, None)
        notes = {**item.metadata.annotations, **write.annotations}
        self._version += 1
        changed = msgspec.structs.replace(
            item,
            metadata=msgspec.structs.replace(
                item.metadata,
                resource_version=str(self._version + 1),
                annotations={key: text for key, text in notes.items() if text is not None},
            ),
            spec=msgspec.structs.replace(item.spec, pod_allocation_requests=requests),
            status=msgspec.structs.replace(item.status, pod_allocation_results=results),
        )
        self._objects[write.node] = changed
        self.slicer.handle(InstasliceObserved(changed))


def simulate(mix: str, mode: str, given: argparse.Namespace) -> dict[str, Any]:
    """One run: all pods arrive, and the waits of those that started before the last arrival."""
    rng = random.Random(given.seed)
    town = Town(given.cards, MODES[mode])
    weights = MIXES[mix]
    mean = sum(size * weight for size, weight in zip(SIZES, weights, strict=True))
    pause = mean * LIFE / (given.load * given.cards * SLOTS)
    arrivals: list[tuple[float, str, float, bool]] = []
    time = BEGIN
    for _ in range(given.pods):
        time += rng.expovariate(1 / pause)
        profile = rng.choices(PROFILES, weights)[0]
        arrivals.append((time, profile, rng.expovariate(1 / LIFE), rng.random() < given.deadlines))
    came: dict[PodUid, tuple[float, str, float]] = {}
    waits: dict[str, list[float]] = {name: [] for name in PROFILES}
    ends: list[tuple[float, PodUid]] = []
    used, busy, since = 0, 0.0, arrivals[given.pods // 4][0]
    last, number, before = arrivals[-1][0], 0, BEGIN
    while number < len(arrivals):
        due = [arrivals[number][0], *([ends[0][0]] if ends else [])]
        timer = town.slicer.next_due
        now = min(due) if timer is None else min(*due, max(before + 1, timer))
        busy += used * max(0.0, now - max(before, since))
        before = now
        while ends and ends[0][0] <= now:
            uid = heapq.heappop(ends)[1]
            used -= SIZES[PROFILES.index(came[uid][1])]
            town.end(uid)
        if arrivals[number][0] <= now:
            at, profile, life, announced = arrivals[number]
            number += 1
            uid = PodUid(f"u{number}")
            came[uid] = (at, profile, life)
            pod = PodInfo(uid=uid, namespace="d", name=f"p{number:06}", gates=(GATE,), profiles=(profile,))
            deadline = life if announced else None
            town.put(replace(pod, amounts={"cpu": 1, "pods": 1}, created=rfc3339(at), deadline=deadline))
        town.settle(now)
        for uid in town.started:
            at, profile, life = came[uid]
            waits[profile].append(now - at)
            used += SIZES[PROFILES.index(profile)]
            heapq.heappush(ends, (now + life, uid))
        town.started.clear()
    gated = [(last - came[uid][0], pod.profiles[0]) for uid, pod in town.pods.items() if pod.gated]
    left = [wait for wait, _ in gated]
    large = [*waits[LARGE], *(wait for wait, profile in gated if profile == LARGE)]
    everyone = [each for rows in waits.values() for each in rows] + left
    return {
        "mix": mix,
        "reservations": mode,
        "alloc%": 100 * busy / ((last - since) * given.cards * SLOTS),
        "mean wait": _mean(everyone) / 60,
        "mean wait 7g": _mean(large) / 60,
        "longest wait 7g": max(large, default=math.nan) / 60,
        "waiting at the end": len(left),
    }


def _mean(values: Sequence[float]) -> float:
    """Returns the mean; NaN of nothing."""
    return statistics.fmean(values) if values else math.nan


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cards", type=int, default=32)
    parser.add_argument("--pods", type=int, default=3_000)
    parser.add_argument("--load", type=float, default=0.9)
    parser.add_argument("--deadlines", type=float, default=0.0, help="share of the pods that announce their end")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    rows = []
    print(f"{'mix':9} {'mode':7} {'alloc%':>7} {'wait':>8} {'7g wait':>8} {'7g worst':>9} {'left':>5}")
    for mix in MIXES:
        for mode in MODES:
            row = simulate(mix, mode, given)
            rows.append(row)
            print(
                f"{mix:9} {mode:7} {row['alloc%']:7.2f} {row['mean wait']:8.1f} {row['mean wait 7g']:8.1f}"
                f" {row['longest wait 7g']:9.1f} {row['waiting at the end']:5}",
                flush=True,
            )
    if given.json is not None:
        given.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
