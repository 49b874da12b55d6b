"""Measures one step of the controller's decision when tenants make it as expensive as they can.

    python bench/decide.py                         1,000 nodes, some minutes
    python bench/decide.py --nodes 5000 --json decide.json

Every case makes pods wait that are as costly to judge as the API server lets them be, on nodes that are half full, and
then frees one slot again and again. Pods that are bound already are absorbed before the clock runs. *worst* is the
longest single step, ``decide()`` and the writes that follow, in CPU time of this process: for that long nothing else
happens in the controller. *steps* is how many it took until everybody was judged, *all* their time together, *innocent*
the step in which a plain pod that came last got its slice.

*honest* is a large cluster where nobody means harm: 5,000 nodes with 50,000 pods of 200 workloads that have a rule
about other pods each, and 500 more of these pods that come together.

*cards*, *odd-cards*, *card-kinds* and *first-cards* have nodes with eight whole cards instead, some of which pods hold.
Nodes of the first 1,000 differ in free CPU or memory by whole steps of the ratings, and so do the pods of *odd-cards*
and *card-kinds*: pods of a few kinds, 3,000 pods of as many kinds, and 2,000 pods of as many kinds that no node takes
for want of another resource. *first-cards* has 5,000 different nodes, and its namespace is managed after all else.
*rooms* and *kinds* are what nodes and waiting pods were counted as, *MB* what the process grew by.

Pods arrive as the API server's objects, so *read* is what reading one of them costs. Nothing is simulated but the
answers to writes.
"""

import argparse
import gc
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from tessera.agent.inventory.sliceable_gpus import placements
from tessera.api.instaslice import Instaslice
from tessera.api.names import (
    GATE,
    HOSTNAME_LABEL,
    MIG_CONFIG_LABEL,
    PLACEMENT_LABEL,
    WHOLE_CARDS,
    NodeName,
    PodUid,
    resource_of,
)
from tessera.cli.base.process import reduce_garbage_collection
from tessera.controller.objects.node_devices import NodeDevices
from tessera.controller.objects.node_info import NodeInfo
from tessera.controller.objects.pod_info import read_pod
from tessera.controller.slicing.slicer import Slicer
from tessera.controller.slicing.state.device_demand import asked_devices
from tessera.controller.slicing.state.events import (
    InstasliceObserved,
    NamespaceObserved,
    NodeObserved,
    PodObserved,
    WriteDone,
)
from tessera.controller.slicing.state.instructions import PatchRequests, PatchResults
from tessera.kube.resources import Pod, Taint
from tessera.mig.models import model_by_short_name
from tessera.placement.ratings.card_request import CPU_STEP, MEMORY_STEP

MODEL = "A100-40GB"
#: Releases after the first plan: each makes everybody who waits a candidate again.
RELEASES = 5


def main() -> None:
    """Runs the cases and prints a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
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
        slicer.handle(NodeObserved(_card_node(index) if cards else _node(index)))
        if not cards:
            slicer.handle(InstasliceObserved(_object(f"n{index}")))
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
    plain = _with_cards("zz-innocent", "1") if cards else pod_of("zz-innocent", created=late, slices={"1g.5gb": 1})
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


# The cluster


def _node(index: int) -> NodeInfo:
    """Every second node is a tenant's own, with a taint of its own."""
    name = f"n{index}"
    taints = (Taint(key="dedicated", value=f"team-{index}", effect="NoSchedule"),) if index % 2 else ()
    return NodeInfo(
        name=NodeName(name),
        hostname=name,
        labels={
            MIG_CONFIG_LABEL: "dynamic",
            HOSTNAME_LABEL: name,
            "zone": f"z{index % 3}",
            **{f"label-{i}": f"value-{i}" for i in range(20)},
        },
        taints=taints,
        allocatable={
            "cpu": 64000,
            "memory": 2**40,
            "pods": 110,
            "ephemeral-storage": 2**40,
            **{resource_of(row.name): 100 for row in model_by_short_name(MODEL).geometry.profiles},
        },
    )


def _card_node(index: int) -> NodeInfo:
    """Eight whole cards of one of two models."""
    name, model = f"n{index}", "H100" if index % 3 else "A100"
    return NodeInfo(
        name=NodeName(name),
        hostname=name,
        labels={HOSTNAME_LABEL: name, "nvidia.com/gpu.product": model},
        allocatable={"cpu": 96_000, "memory": 2**40, "pods": 110, WHOLE_CARDS: 8},
        devices=(NodeDevices(WHOLE_CARDS, model, 8, 8, 80),),
    )


def _object(name: str, cards: int = 4) -> Instaslice:
    model = model_by_short_name(MODEL)
    table = msgspec.to_builtins(placements(model.geometry))
    gpus = [{"gpuUuid": f"GPU-{name}-{i}", "gpuName": model.product_name, "gpuMemory": "40960Mi"} for i in range(cards)]
    foreign = [
        {"gpuUUID": f"GPU-{name}-{i}", "profile": "1g.5gb", "start": start, "size": 1}
        for i in range(cards)
        for start in (0, 2)[: 1 + (int(name[1:]) + i) % 2]
    ]
    body = {
        "metadata": {"name": name, "namespace": "instaslice-system", "uid": f"o-{name}", "resourceVersion": "1"},
        "status": {"nodeResources": {"nodeGpus": gpus, "migPlacement": table, "foreign": foreign, "bootId": "b"}},
    }
    return msgspec.convert(body, Instaslice)


def pod_of(
    name: str,
    *,
    slices: dict[str, int],
    created: str = "2026-01-01T00:00:00Z",
    requests: dict[str, str] | None = None,
    count: int = 1,
    **spec: Any,
) -> Pod:
    """A pod behind our gate, as the API server would send it."""
    limits = {f"nvidia.com/mig-{profile}": str(count) for profile, count in slices.items()}
    body = {
        "metadata": {"name": name, "namespace": "tenant", "uid": f"u-{name}", "creationTimestamp": created},
        "spec": {
            "schedulingGates": [{"name": GATE}],
            "containers": [
                {"name": f"c{i}", "resources": {"limits": {**limits, **(requests or {})} if not i else requests or {}}}
                for i in range(count)
            ],
            **spec,
        },
    }
    return msgspec.convert(body, Pod)


def _affinity(terms: list[dict[str, Any]]) -> dict[str, Any]:
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


def _test(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


# The cases


def _few_pods_of_many_terms() -> Iterator[Pod]:
    for number in range(4):
        terms = [_test("zone", "In", f"p{number}-{i}") for i in range(12_000)]
        yield pod_of(f"p{number}", slices={"1g.5gb": 1}, affinity=_affinity(terms))


def _many_pods_of_some_terms() -> Iterator[Pod]:
    for number in range(300):
        terms = [_test(f"label-{i % 20}", "In", f"p{number}-{i}") for i in range(500)]
        yield pod_of(f"p{number:03}", slices={"1g.5gb": 1}, affinity=_affinity(terms))


def _many_pods_at_the_limit() -> Iterator[Pod]:
    for number in range(300):
        terms = [_test(f"label-{i % 20}", "In", f"p{number}-{i}", "x", "y") for i in range(100)]
        yield pod_of(f"p{number:03}", slices={"1g.5gb": 1}, affinity=_affinity(terms))


def _one_term_of_many_tests() -> Iterator[Pod]:
    for number in range(300):
        tests = [{"key": f"label-{i % 20}", "operator": "NotIn", "values": [f"{number}-{i}"]} for i in range(500)]
        yield pod_of(f"p{number:03}", slices={"7g.40gb": 1}, affinity=_affinity([{"matchExpressions": tests}]))


def _numbers() -> Iterator[Pod]:
    for number in range(300):
        tests = [{"key": "label-1", "operator": "Gt", "values": ["9" * 4000]} for i in range(50)]
        yield pod_of(f"p{number:03}", slices={"7g.40gb": 1}, affinity=_affinity([{"matchExpressions": tests}]))


def _selectors() -> Iterator[Pod]:
    for number in range(300):
        selector = {f"label-{i}": f"{number}-{i}" for i in range(3_000)}
        yield pod_of(f"p{number:03}", slices={"1g.5gb": 1}, nodeSelector=selector)


def _tolerations() -> Iterator[Pod]:
    for number in range(300):
        rows = [{"key": "dedicated", "operator": "Equal", "value": f"{number}-{i}"} for i in range(2_000)]
        yield pod_of(f"p{number:03}", slices={"7g.40gb": 1}, tolerations=rows, nodeSelector={"zone": "z0"})


def _amounts() -> Iterator[Pod]:
    for number in range(3_000):
        yield pod_of(f"p{number:04}", slices={"1g.5gb": 1}, requests={"cpu": f"{100_000 + number}m"})


def _resources() -> Iterator[Pod]:
    for number in range(100):
        rows = {f"example.com/r{i}": str(number + i) for i in range(3_000)}
        yield pod_of(f"p{number:03}", slices={"1g.5gb": 1}, requests=rows)


def _containers() -> Iterator[Pod]:
    for number in range(20):
        yield pod_of(
            f"p{number:03}", slices={"1g.5gb": 1}, requests={"cpu": "1m", "memory": f"{number}Gi"}, count=5_000
        )


def _slices() -> Iterator[Pod]:
    for number in range(300):
        yield pod_of(
            f"p{number:03}", slices={"1g.5gb": 3 + number % 7, "2g.10gb": 1 + number // 7, "3g.20gb": 3, "1g.10gb": 3}
        )


def _distinct_nodes() -> Iterator[Pod]:
    for number in range(1_000):
        terms = [_test("kubernetes.io/hostname", "In", f"n{2 * number}")]
        yield pod_of(f"p{number:03}", slices={"7g.40gb": 1}, affinity=_affinity(terms), requests={"cpu": f"{number}m"})


def _plain() -> Iterator[Pod]:
    for number in range(1_000):
        yield pod_of(f"p{number:04}", slices={"1g.5gb" if number % 3 else "2g.10gb": 1}, requests={"cpu": "1"})


def _with_cards(
    name: str, cpu: str, cards: int = 1, *, node: str = "", gib: int = 0, others: dict[str, str] | None = None
) -> Pod:
    """A pod with whole cards: behind our gate, or on a node."""
    limits = {WHOLE_CARDS: str(cards), "cpu": cpu, "memory": f"{gib}Gi", **(others or {})}
    pod = pod_of(name, slices={}, containers=[{"name": "c", "resources": {"limits": limits}}])
    spec = msgspec.structs.replace(pod.spec, node_name=node, scheduling_gates=[]) if node else pod.spec
    return msgspec.structs.replace(pod, spec=spec)


def _card_holders(nodes: int = 1_000) -> Iterator[Pod]:
    """Pods that leave each node another amount of CPU or memory, in steps of the ratings: a core, 4 GiB."""
    for number in range(nodes):
        cpu, gib = f"{4 + number % 40}", 4 * (number // 40)
        yield _with_cards(f"there-{number}", cpu, 1 + number % 5, node=f"n{number}", gib=gib)


def _cards() -> Iterator[Pod]:
    yield from _card_holders()
    for number in range(1_000):
        yield _with_cards(f"p{number:04}", f"{4 * (1 + number % 4)}", 1 + number % 2)


def _odd_cards() -> Iterator[Pod]:
    yield from _card_holders()
    for number in range(3_000):
        yield _with_cards(f"p{number:04}", f"{1 + number % 30}", gib=4 * (number // 30))


def _card_kinds() -> Iterator[Pod]:
    yield from _card_holders()
    for number in range(2_000):
        others = {"example.com/absent": "1"}
        yield _with_cards(f"p{number:04}", f"{1 + number % 30}", gib=4 * (number // 30), others=others)


def _first_cards() -> Iterator[Pod]:
    yield from _card_holders(MANY_NODES)


# Rules about other pods, each at the limits of tessera.limits

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_KEYS = (HOSTNAME_LABEL, "zone")


def _neighbours(count: int = 3_000) -> Iterator[Pod]:
    """Pods without GPUs that are there: labels, anti-affinity and host ports of their own."""
    for number in range(count):
        term = {"labelSelector": {"matchLabels": {"app": f"other-{number}"}}, "topologyKey": HOSTNAME_LABEL}
        container = {"name": "c", "ports": [{"hostPort": 1024 + number}, {"hostPort": 20_000 + number}]}
        body = {
            "metadata": {
                "name": f"there-{number}",
                "namespace": "tenant",
                "uid": f"u-there-{number}",
                "labels": {"app": f"a{number % 50}", **{f"l{i}": f"v{number % (i + 2)}" for i in range(20)}},
            },
            "spec": {
                "nodeName": f"n{number % 1_000}",
                "containers": [container],
                "affinity": {"podAntiAffinity": {_REQUIRED: [term]}},
            },
        }
        yield msgspec.convert(body, Pod)


def _selector(number: int, index: int, values: int) -> dict[str, Any]:
    """A selector that no other pod has, which looks at every group of pods."""
    tests = [{"key": f"l{i % 20}", "operator": "NotIn", "values": [f"x{number}-{index}-{i}"]} for i in range(values)]
    return {"labelSelector": {"matchExpressions": tests}}


def _terms(number: int, kind: int) -> list[dict[str, Any]]:
    return [{**_selector(number, 100 * kind + i, 8), "topologyKey": _KEYS[i % 2]} for i in range(20)]


def _pods_of_rules(kinds: str, namespaces: int = 1) -> Iterator[Pod]:
    """Pods with all the rules of these kinds that the limits let through."""
    yield from _neighbours()
    for number in range(300):
        affinity: dict[str, Any] = {}
        spec: dict[str, Any] = {}
        if "near" in kinds:
            affinity["podAffinity"] = {_REQUIRED: _terms(number, 1)}
        if "apart" in kinds:
            affinity["podAntiAffinity"] = {_REQUIRED: _terms(number, 2)}
        if "spread" in kinds:
            settings = {"maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
            spec["topologySpreadConstraints"] = [{**term, **settings} for term in _terms(number, 3)]
        body = msgspec.to_builtins(pod_of(f"p{number:03}", slices={"1g.5gb": 1}, affinity=affinity, **spec))
        labels = {"app": f"other-{number}", **{f"l{i}": f"{number}" for i in range(20)}}
        body["metadata"] |= {"namespace": f"tenant-{number % namespaces}", "labels": labels}
        yield msgspec.convert(body, Pod)


def _near() -> Iterator[Pod]:
    yield from _pods_of_rules("near")


def _apart() -> Iterator[Pod]:
    yield from _pods_of_rules("apart")


def _spread() -> Iterator[Pod]:
    yield from _pods_of_rules("spread")


def _all_rules() -> Iterator[Pod]:
    yield from _pods_of_rules("near apart spread", namespaces=10)


def _ports() -> Iterator[Pod]:
    """Every pod asks for as many ports as it may, the last of which is taken where it is looked for."""
    yield from _neighbours()
    for number in range(300):
        body = msgspec.to_builtins(pod_of(f"p{number:03}", slices={"1g.5gb": 1}))
        free = [{"hostPort": 40_000 + (number * 7 + i) % 20_000} for i in range(199)]
        body["spec"]["containers"][0]["ports"] = [*free, {"hostPort": 1024 + number}]
        yield msgspec.convert(body, Pod)


# Batches that go where an index or a count might be missing


def _labelled_as(pod: Pod, namespace: str, labels: dict[str, str]) -> Pod:
    metadata = msgspec.structs.replace(pod.metadata, namespace=namespace, labels=labels)
    return msgspec.structs.replace(pod, metadata=metadata)


def _bound(name: str, node: int, namespace: str, labels: dict[str, str], **spec: Any) -> Pod:
    body = {
        "metadata": {"name": name, "namespace": namespace, "uid": f"u-{name}", "labels": labels},
        "spec": {"nodeName": f"n{node}", "containers": [{"name": "c"}], **spec},
    }
    return msgspec.convert(body, Pod)


def _opposed() -> Iterator[Pod]:
    """Pods that run elsewhere have 20,000 terms of anti-affinity, none with a test for equality, for all namespaces."""
    for number in range(1_000):
        terms = [
            {**_selector(number, i, 20), "namespaceSelector": {}, "topologyKey": HOSTNAME_LABEL} for i in range(19)
        ]
        never = {"matchExpressions": [{"key": "absent", "operator": "Exists"}]}
        terms.append({"labelSelector": never, "namespaceSelector": {}, "topologyKey": "zone"})
        yield _bound(
            f"there-{number}", number, f"o{number % 100}", {}, affinity={"podAntiAffinity": {_REQUIRED: terms}}
        )
    for number in range(300):
        pod = pod_of(f"p{number:03}", slices={"7g.40gb": 1})
        yield _labelled_as(pod, f"t{number % 50}", {f"l{i}": f"{number}" for i in range(20)})


def _namespaces() -> Iterator[Pod]:
    """Spread and anti-affinity over namespaces by name and by label, where each pod has labels of its own."""
    for number in range(5_000):
        yield _bound(f"there-{number}", number % 1_000, f"s{number % 500}", {f"l{i}": f"v{number}" for i in range(20)})
    for number in range(100):
        named = [f"s{(number + i) % 500}" for i in range(40)]
        wide = {"matchExpressions": [{"key": f"team-{number}-{i}", "operator": "DoesNotExist"} for i in range(8)]}
        terms = [
            {**_selector(number, i, 4), "topologyKey": f"label-{i}"}
            | ({"namespaces": named} if i % 2 else {"namespaceSelector": wide})
            for i in range(20)
        ]
        spread = [
            {**_selector(number, 100 + i, 2), "topologyKey": _KEYS[i % 2], "matchLabelKeys": ["l1", "l2"]}
            | {"maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
            for i in range(20)
        ]
        affinity = {"podAntiAffinity": {_REQUIRED: terms}}
        pod = pod_of(f"p{number:03}", slices={"1g.5gb": 1}, affinity=affinity, topologySpreadConstraints=spread)
        yield _labelled_as(pod, f"s{number % 500}", {f"l{i}": f"{number}" for i in range(20)})


def _values() -> Iterator[Pod]:
    """One test with as many values as the limits let through."""
    yield from _neighbours()
    for number in range(300):
        operator = "In" if number % 2 else "NotIn"
        tests = [{"key": "l0", "operator": operator, "values": [f"{number}-{i}" for i in range(990)]}]
        term = {"labelSelector": {"matchExpressions": tests}, "topologyKey": HOSTNAME_LABEL}
        yield pod_of(f"p{number:03}", slices={"1g.5gb": 1}, affinity={"podAntiAffinity": {_REQUIRED: [term]}})


def _labels() -> Iterator[Pod]:
    """Pods with 5,000 labels each, as large as the API server takes them."""
    for number in range(300):
        pod = pod_of(f"p{number:03}", slices={"1g.5gb": 1})
        yield _labelled_as(pod, "tenant", {f"l{i}": f"{number}-{i}" for i in range(5_000)})


def _taken_ports() -> Iterator[Pod]:
    """The port that is taken on every node stands among others that are free."""
    for number in range(1_000):
        yield _bound(f"there-{number}", number, "s", {}, hostNetwork=True, containers=_ports_of([1024]))
    for number in range(300):
        (container,) = _ports_of([40_000 + (number * 7 + i) % 20_000 for i in range(199)] + [1024])
        limits = {"nvidia.com/mig-1g.5gb": "1"}
        yield pod_of(f"p{number:03}", slices={}, containers=[{**container, "resources": {"limits": limits}}])


def _ports_of(numbers: list[int]) -> list[dict[str, Any]]:
    return [{"name": "c0", "ports": [{"hostPort": number, "containerPort": number} for number in numbers]}]


# A large cluster where nobody means harm

MANY_NODES, WORKLOADS, REPLICAS = 5_000, 200, 250


def _honest() -> Iterator[Pod]:
    """200 Deployments and StatefulSets of 250 replicas, each with one rule; 500 more replicas come together."""
    for number in range(WORKLOADS * REPLICAS):
        workload, replica = number % WORKLOADS, number // WORKLOADS
        spec = {"nodeName": f"n{(workload * 25 + replica * 20) % MANY_NODES}", "containers": [{"name": "c"}]}
        yield _replica(workload, replica, msgspec.convert({"metadata": {}, "spec": spec}, Pod))
    for number in range(500):
        workload, replica = number % WORKLOADS, REPLICAS + number // WORKLOADS
        yield _replica(workload, replica, pod_of("", slices={"1g.5gb": 1}, requests={"cpu": "1"}))


def _replica(workload: int, replica: int, pod: Pod) -> Pod:
    name = f"w{workload}-{replica}"
    labels = {"app": f"w{workload}", "tier": f"t{workload % 5}", "release": f"r{workload % 50}"}
    if workload % 2:
        labels |= {"statefulset.kubernetes.io/pod-name": name, "apps.kubernetes.io/pod-index": str(replica)}
    else:
        labels["pod-template-hash"] = f"h{workload}"
    body = msgspec.to_builtins(pod)
    body["metadata"] |= {"name": name, "namespace": f"team-{workload % 20}", "uid": f"u-{name}", "labels": labels}
    selector = {"labelSelector": {"matchLabels": {"app": f"w{workload}"}}}
    if workload % 4 < 2:
        term = {**selector, "topologyKey": HOSTNAME_LABEL}
        body["spec"]["affinity"] = {"podAntiAffinity": {_REQUIRED: [term]}}
    else:
        rule = {**selector, "topologyKey": "zone", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
        body["spec"]["topologySpreadConstraints"] = [rule]
    return msgspec.convert(body, Pod)


CASES: dict[str, Callable[[], Iterator[Pod]]] = {
    "plain": _plain,
    "terms-12000": _few_pods_of_many_terms,
    "terms-500": _many_pods_of_some_terms,
    "terms-100": _many_pods_at_the_limit,
    "tests-500": _one_term_of_many_tests,
    "numbers": _numbers,
    "selectors": _selectors,
    "tolerations": _tolerations,
    "amounts": _amounts,
    "resources": _resources,
    "containers": _containers,
    "slices": _slices,
    "distinct-nodes": _distinct_nodes,
    "affinity": _near,
    "anti-affinity": _apart,
    "spread": _spread,
    "all-rules": _all_rules,
    "host-ports": _ports,
    "taken-ports": _taken_ports,
    "opposed": _opposed,
    "namespaces": _namespaces,
    "values": _values,
    "labels": _labels,
    "honest": _honest,
    "cards": _cards,
    "odd-cards": _odd_cards,
    "card-kinds": _card_kinds,
    "first-cards": _first_cards,
}

#: Cases with whole cards instead of slices.
CARD_CASES = {"cards", "odd-cards", "card-kinds", "first-cards"}
#: Of these, cases whose namespace is managed only after everything else is known.
LATE_CASES = {"first-cards"}

#: Nodes of the cases that have a cluster of their own.
SIZES = {"honest": MANY_NODES, "first-cards": MANY_NODES}

if __name__ == "__main__":
    main()
