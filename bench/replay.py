"""The cost of recording: events per second of the slicer with and without a recorder (``--record N``).

    python bench/replay.py                           100 nodes of 4 cards, about a minute
    python bench/replay.py --nodes 1000 --json replay.json

In each round every variant runs once over the same events, in an order that changes, so that a busy machine does not
favour one of them. An event is one call of the slicer: a pod comes, a decision, the due writes, their outcomes, the pod
goes. The cluster is half full. Times are of this process's CPU. *slowest* is the longest call, in which the recorder
stores the whole state; the controller does nothing else for that long. *record* is the size of the fetched record.
"""

import argparse
import gc
import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from tessera.agent.inventory.sliceable_gpus import placements
from tessera.api.instaslice import Instaslice
from tessera.api.names import GATE, HOSTNAME_LABEL, MIG_CONFIG_LABEL, NodeName, PodUid, resource_of
from tessera.cli.base.process import reduce_garbage_collection
from tessera.controller.objects.node_info import NodeInfo
from tessera.controller.objects.pod_info import PodInfo, read_pod
from tessera.controller.slicing.slicer import Slicer
from tessera.controller.slicing.state.events import (
    DecisionDue,
    InstasliceObserved,
    NodeObserved,
    PodDeleted,
    PodObserved,
    SlicerEvent,
    WriteDone,
    WritesDue,
)
from tessera.controller.slicing.state.instructions import RecordEvent
from tessera.kube.resources import Pod
from tessera.mig.models import model_by_short_name
from tessera.replay.recorder import Recorders

MODEL = model_by_short_name("A100-40GB")
CARDS = 4
#: Decisions that a recorder keeps at least, by variant; 0 records nothing.
VARIANTS = (0, 100, 1000)


class Run(NamedTuple):
    """One variant over all events.

    Attributes:
        rate: events per second of CPU.
        slowest: CPU seconds of the longest call.
        size: bytes of the record.
    """

    rate: float
    slowest: float
    size: int


def main() -> None:
    """Runs the variants in turn and prints a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--pods", type=int, default=400, help="pods that come and go in each run")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    runs: dict[int, list[Run]] = {keep: [] for keep in VARIANTS}
    for number in range(options.rounds):
        for keep in VARIANTS[number % len(VARIANTS) :] + VARIANTS[: number % len(VARIANTS)]:
            runs[keep].append(measure(options.nodes, options.pods, keep))
    rows = list(summarize(runs, options.nodes))
    for line in table(rows):
        print(line)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")


def summarize(runs: dict[int, list[Run]], nodes: int) -> Iterator[dict[str, Any]]:
    """The medians of each variant, and its rate as a part of the rate without recording."""
    plain = statistics.median(run.rate for run in runs[0])
    for keep, each in runs.items():
        rate = statistics.median(run.rate for run in each)
        yield {
            "record": keep,
            "nodes": nodes,
            "events_per_s": rate,
            "of_plain": rate / plain,
            "slowest_ms": 1000 * statistics.median(run.slowest for run in each),
            "record_kb": statistics.median(run.size for run in each) / 1024,
        }


def table(rows: list[dict[str, Any]]) -> Iterator[str]:
    """The figures as text."""
    yield f"{'recording':<16}{'events/s':>10}{'of plain':>10}{'slowest ms':>12}{'record KB':>11}"
    for row in rows:
        name = f"--record {row['record']}" if row["record"] else "off"
        yield (
            f"{name:<16}{row['events_per_s']:>10,.0f}{row['of_plain']:>10.0%}"
            f"{row['slowest_ms']:>12.1f}{row['record_kb']:>11,.0f}"
        )


def measure(nodes: int, pods: int, keep: int) -> Run:
    """Runs a new slicer over the events."""
    slicer = Slicer()
    for index in range(nodes):
        slicer.handle(NodeObserved(_node(f"n{index}")))
        slicer.handle(InstasliceObserved(_instaslice(f"n{index}")))
    facts = [_pod(number) for number in range(pods)]
    slicer.decide()
    recorders = Recorders(keep)
    recorders.attach("slicer", slicer)
    gc.collect()
    reduce_garbage_collection()  # as the controller's process does
    seconds = list(_call_slicer(slicer, facts))
    size = sum(len(msgspec.json.encode(each)) for each in recorders.records())
    return Run(len(seconds) / sum(seconds), max(seconds), size)


def _call_slicer(slicer: Slicer, pods: list[PodInfo]) -> Iterator[float]:
    """Yields the CPU seconds of each call; half of the pods stay."""

    def timed(event: SlicerEvent) -> tuple[float, Any]:
        began = time.process_time()
        result = slicer.handle(event)
        return time.process_time() - began, result

    for number, pod in enumerate(pods):
        yield timed(PodObserved(pod))[0]
        if number % 2:
            yield timed(PodDeleted(PodUid(pods[number - 1].uid)))[0]
        yield timed(DecisionDue())[0]
        seconds, writes = timed(WritesDue())
        yield seconds
        for write in writes:
            if not isinstance(write, RecordEvent):
                yield timed(WriteDone(write))[0]


def _node(name: str) -> NodeInfo:
    slices = {resource_of(row.name): 100 for row in MODEL.geometry.profiles}
    return NodeInfo(
        name=NodeName(name),
        hostname=name,
        labels={MIG_CONFIG_LABEL: "dynamic", HOSTNAME_LABEL: name, **{f"label-{i}": f"value-{i}" for i in range(20)}},
        allocatable={"cpu": 64000, "memory": 2**40, "pods": 110, **slices},
    )


def _instaslice(name: str) -> Instaslice:
    """A node's object; a foreign slice takes half of each card."""
    uuids = [f"GPU-{name}-{number}" for number in range(CARDS)]
    body = {
        "metadata": {"name": name, "namespace": "instaslice-system", "uid": f"o-{name}", "resourceVersion": "1"},
        "status": {
            "nodeResources": {
                "nodeGpus": [
                    {"gpuUuid": uuid, "gpuName": MODEL.product_name, "gpuMemory": "40960Mi"} for uuid in uuids
                ],
                "migPlacement": msgspec.to_builtins(placements(MODEL.geometry)),
                "foreign": [{"gpuUUID": uuid, "profile": "3g.20gb", "start": 0, "size": 4} for uuid in uuids],
                "bootId": "b",
            }
        },
    }
    return msgspec.convert(body, Instaslice)


def _pod(number: int) -> PodInfo:
    name = f"p{number:05}"
    body = {
        "metadata": {
            "name": name,
            "namespace": "team",
            "uid": f"u-{name}",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"app": f"a{number % 20}"},
        },
        "spec": {
            "schedulingGates": [{"name": GATE}],
            "containers": [{"name": "c", "resources": {"limits": {"nvidia.com/mig-1g.5gb": "1", "cpu": "1"}}}],
        },
    }
    return read_pod(msgspec.convert(body, Pod))


if __name__ == "__main__":
    main()
