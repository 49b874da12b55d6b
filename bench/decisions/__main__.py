"""Measures one step of the controller's decision when tenants make it as expensive as they can.

Run by ``python bench/decide.py``, which says what the columns are.
"""

import argparse
import gc
import json
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

from bench.decisions.cases import CARD_CASES, CASES, LATE_CASES, SIZES
from bench.decisions.cluster import make_card_node, make_node, make_object, pod_of, with_cards

from tessera.api.names import (
    PLACEMENT_LABEL,
    WHOLE_CARDS,
    NodeName,
    PodUid,
)
from tessera.cli.base.process import reduce_garbage_collection
from tessera.controller.objects.pod_info import read_pod
from tessera.controller.slicing.slicer import Slicer
from tessera.controller.slicing.state.device_inventory import asked_devices
from tessera.controller.slicing.state.events import (
    InstasliceObserved,
    NamespaceObserved,
    NodeObserved,
    PodObserved,
    WriteDone,
)
from tessera.controller.slicing.state.instructions import PatchRequests, PatchResults
from tessera.placement.card_demand import CPU_STEP, MEMORY_STEP

#: Releases after the first plan: each makes everybody who waits a candidate again.
RELEASES = 5


def main() -> None:
    """Runs the cases and prints a line for each."""
    parser = argparse.ArgumentParser(prog="decide.py", description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--cases", nargs="*", choices=sorted(CASES), default=list(CASES))
    parser.add_argument("--json", type=Path, help="write the figures here")
    given = parser.parse_args()
    print(
        f"{'case':<16}{'pods':>6}{'placed':>8}{'read ms':>9}{'worst ms':>10}{'steps':>7}{'all ms':>9}{'innocent':>10}"
        f"{'MB':>7}{'rooms':>7}{'kinds':>7}"
    )
    rows = []
    for name in given.cases:
        row = {"case": name, **_measure(name, SIZES.get(name, given.nodes))}
        rows.append(row)
        print(
            f"{name:<16}{row['pods']:>6}{row['placed']:>8}{row['read_ms']:>9.1f}{row['worst_ms']:>10.0f}{row['steps']:>7}"
            f"{row['all_ms']:>9.0f}{row['innocent_step'] or '-':>10}{row['grown_mb']:>7.0f}"
            f"{row['rooms'] or '':>7}{row['kinds'] or '':>7}",
            flush=True,
        )
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")


def _measure(name: str, nodes: int) -> dict[str, Any]:
    case, cards = CASES[name], name in CARD_CASES
    managed = NamespaceObserved("tenant", {PLACEMENT_LABEL: "managed"})
    slicer = Slicer()
    if cards and name not in LATE_CASES:
        slicer.handle(managed)
    for index in range(nodes):
        slicer.handle(NodeObserved(make_card_node(index) if cards else make_node(index)))
        if not cards:
            slicer.handle(InstasliceObserved(make_object(f"n{index}")))
    _settle(slicer)
    pods = list(case())
    reading = []
    for pod in [each for each in pods if each.spec.node_name]:
        slicer.handle(PodObserved(read_pod(pod)))
    _settle(slicer)
    gc.collect()
    reduce_garbage_collection()  # as the controller's process does
    for pod in [each for each in pods if not each.spec.node_name]:
        began = time.process_time()
        facts = read_pod(pod)
        reading.append(time.process_time() - began)
        slicer.handle(PodObserved(facts))
    if name in LATE_CASES:
        slicer.handle(managed)
    late = "2026-01-02T00:00:00Z"
    plain = with_cards("zz-innocent", "1") if cards else pod_of("zz-innocent", created=late, slices={"1g.5gb": 1})
    innocent = read_pod(plain)
    slicer.handle(PodObserved(innocent))
    rooms, kinds = _count_kinds(slicer) if cards else (0, 0)
    took, placed, before = [], None, _memory_mb()
    for _ in range(RELEASES + 1):
        while True:
            took.append(_decide(slicer))
            if placed is None and slicer.state.allocations.current_of(innocent.uid) is not None:
                placed = len(took)
            if not slicer.has_work:
                break
        slicer.state.cluster.capacity_changes.room_may_have_grown(NodeName("n0"))  # as if a slot came free
    waits = {pod.metadata.uid for pod in pods if not pod.spec.node_name}
    return {
        "nodes": nodes,
        "placed": sum(slicer.state.allocations.current_of(PodUid(uid)) is not None for uid in waits),
        "pods": len(pods),
        "read_ms": 1000 * max(reading, default=0.0),
        "worst_ms": 1000 * max(took),
        "steps": len(took),
        "all_ms": 1000 * sum(took),
        "innocent_step": placed,
        "grown_mb": _memory_mb() - before,
        "rooms": rooms,
        "kinds": kinds,
    }


def _count_kinds(slicer: Slicer) -> tuple[int, int]:
    """Returns how many different nodes and waiting pods the ratings see: amounts count in whole steps."""
    cluster, free, kinds = slicer.state.cluster, set(), set()
    held: dict[NodeName, Counter[str]] = {}
    for pod in cluster.pods.values():
        if pod.node:
            held.setdefault(pod.node, Counter()).update(pod.amounts)
        else:
            kinds.add(asked_devices(pod))
    for name, node in cluster.nodes.items():
        cpu, memory, cards = (
            (node.allocatable_amount(each) or 0) - held.get(name, Counter())[each]
            for each in ("cpu", "memory", WHOLE_CARDS)
        )
        free.add((node.devices, cpu // CPU_STEP, (memory >> 20) // MEMORY_STEP, cards))
    return len(free), len(kinds)


def _memory_mb() -> float:
    """Returns the memory of this process."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def _settle(slicer: Slicer) -> None:
    """Lets the slicer take in everything, before the clock runs."""
    _decide(slicer)
    while slicer.has_work:
        _decide(slicer)


def _decide(slicer: Slicer) -> float:
    began = time.process_time()
    slicer.decide()
    writes = slicer.pop_writes()
    took = time.process_time() - began
    for write in writes:
        if isinstance(write, PatchRequests | PatchResults):
            slicer.handle(WriteDone(write))
    return took


if __name__ == "__main__":
    main()
