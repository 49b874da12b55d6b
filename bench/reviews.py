"""Admission under attack: CPU milliseconds of one review, for pods that are made to be slow.

    python bench/reviews.py
    python bench/reviews.py --nodes 500 --runs 3 --json reviews.json

Each row is one pod of about 1 MiB, as large as a pod can be, reviewed in a cluster of 5,000 nodes that offer slices on
demand, shares and whole cards and have 30 labels each. ``worst`` is the slowest of the runs, decoding and answer
included; the bar is 200 ms. ``answer`` is what becomes of the pod: let in, patched, refused, or no review at all (400).
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec

from tessera.limits import (
    NODE_AFFINITY_EXPRESSIONS,
    NODE_AFFINITY_TERMS,
    NODE_AFFINITY_VALUES,
    NODE_SELECTOR_LABELS,
    POD_CONTAINERS,
    POD_QUANTITIES,
    PRODUCTS,
)
from tessera.offers import GIB, CardProperties, Offer, OfferedKind
from tessera.webhook.capabilities import Capabilities, GpuNode
from tessera.webhook.review import Reviewer, ReviewError

#: The most CPU that a review may cost, milliseconds.
BAR = 200.0
#: Bytes of a pod.
SIZE = 2**20

Json = dict[str, Any]

_SLICE = {"nvidia.com/mig-1g.5gb": "1"}
_PROFILES = ("1g.5gb", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb")


def main() -> None:
    """Reviews each pod and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=5000, help="nodes of the cluster")
    parser.add_argument("--runs", type=int, default=5, help="reviews of each pod")
    parser.add_argument("--json", type=Path, help="write the figures here")
    given = parser.parse_args()
    began = time.process_time()
    known = cluster(given.nodes)
    learnt = 1000 * (time.process_time() - began)
    print(f"one review of a pod of 1 MiB, CPU ms of {given.runs} runs, {given.nodes} nodes; the bar is {BAR:.0f} ms")
    print(f"(learning the nodes took {learnt:.0f} ms in all)")
    print(f"{'pod':<44}{'KiB':>6}{'p50':>8}{'worst':>8}  answer")
    rows = [measured(name, body, known, given.runs) for name, body in bodies()]
    for row in rows:
        print(f"{row['pod']:<44}{row['kib']:>6}{row['p50']:>8.1f}{row['worst']:>8.1f}  {row['answer']}")
    print(f"{'slowest':<44}{'':>6}{'':>8}{max(row['worst'] for row in rows):>8.1f}")
    figures = {"bar_ms": BAR, "nodes": given.nodes, "runs": given.runs, "learning_ms": learnt, "rows": rows}
    if given.json is None:
        print(json.dumps(figures))
    else:
        given.json.write_text(json.dumps(figures, indent=2))


def measured(name: str, body: bytes, known: Capabilities, runs: int) -> Json:
    """One row."""
    found = [reviewed(body, known) for _ in range(runs)]
    times = [each for each, _ in found]
    return {
        "pod": name,
        "kib": len(body) // 1024,
        "p50": statistics.median(times),
        "worst": max(times),
        "answer": found[0][1],
    }


def reviewed(body: bytes, known: Capabilities) -> tuple[float, str]:
    """CPU milliseconds of a review, and its answer in a word and the first words of its text."""
    reviewer = Reviewer(known)
    began = time.thread_time()
    try:
        answer = msgspec.json.decode(reviewer.review(body))["response"]
    except ReviewError as error:
        return 1000 * (time.thread_time() - began), f"400: {error}"[:70]
    took = 1000 * (time.thread_time() - began)
    if not answer["allowed"]:
        return took, f"refused: {answer['status']['message']}"[:70]
    return took, "patched" if "patch" in answer else "let in"


# -- the cluster -----------------------------------------------------------------------------------------------------

_A100 = CardProperties(
    product="NVIDIA A100-SXM4-40GB", memory_mib=40960, compute_capability=(8, 0), nvlink=True, ecc=True
)
_T4 = CardProperties(product="Tesla T4", memory_mib=15360, compute_capability=(7, 5), ecc=True)


def cluster(nodes: int) -> Capabilities:
    """Nodes of four sorts: slices on demand, two kinds of whole cards, and such that do not say what they have."""
    return Capabilities.of(_node(number) for number in range(nodes))


def _node(number: int) -> GpuNode:
    labels = {f"example.com/label-{each}": f"value-{number % (each + 1)}" for each in range(26)}
    labels |= {"kubernetes.io/hostname": f"node-{number}", "example.com/rank": str(number)}
    name = f"node-{number}"
    match number % 4:
        case 0:
            labels["nvidia.com/mig.config"] = "dynamic"
            offers = tuple(_offer(f"nvidia.com/mig-{each}", OfferedKind.DYNAMIC_SLICE, _A100) for each in _PROFILES)
            return GpuNode(name=name, labels=labels, compared=offers, on_demand=frozenset(_PROFILES))
        case 1:
            return GpuNode(name=name, labels=labels, compared=(_offer("nvidia.com/gpu", OfferedKind.WHOLE, _A100),))
        case 2:
            return GpuNode(name=name, labels=labels, compared=(_offer("nvidia.com/gpu", OfferedKind.WHOLE, _T4),))
        case _:
            return GpuNode(name=name, labels=labels, undescribed=frozenset({"nvidia.com/gpu"}))


def _offer(resource: str, kind: OfferedKind, card: CardProperties) -> Offer:
    memory = card.memory if kind is OfferedKind.WHOLE else int(resource.rpartition(".")[2].removesuffix("gb")) * GIB
    return Offer(resource=resource, kind=kind, card=card, memory=memory, portion=Fraction(1), count=8)


# -- the pods --------------------------------------------------------------------------------------------------------


def bodies() -> Iterator[tuple[str, bytes]]:
    """Name and AdmissionReview of each pod."""
    for name, made in _PODS.items():
        found = made()
        yield name, found if isinstance(found, bytes) else review(found)


def review(pod: Json) -> bytes:
    """The AdmissionReview of a pod that is created."""
    request = {"uid": "u", "operation": "CREATE", "kind": {"kind": "Pod"}, "object": pod}
    return msgspec.json.encode({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request})


def _pod(limits: Mapping[str, Any] | None = None, annotations: Mapping[str, str] | None = None, **spec: Any) -> Json:
    container = {"name": "main", "resources": {"limits": limits or {}, "requests": limits or {}}}
    return {"metadata": {"annotations": annotations or {}}, "spec": {"containers": [container], **spec}}


def _needing(**needs: str) -> Json:
    return _pod(None, {f"tessera.dev/{key.replace('_', '-')}": value for key, value in needs.items()})


def _affinity(terms: list[Json]) -> Json:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return {"nodeAffinity": required}


def _tests(count: int, made: Callable[[int], Json]) -> list[Json]:
    return [{"matchExpressions": [made(number)]} for number in range(count)]


def _in(number: int) -> Json:
    return {"key": "kubernetes.io/hostname", "operator": "In", "values": [f"node-{number}"]}


def _filled(made: Callable[[int], Any]) -> list[Any]:
    """As many items as a pod of the size holds."""
    length = len(msgspec.json.encode(made(10_000))) + 1
    return [made(number) for number in range(SIZE // length)]


def _sliced(**spec: Any) -> Json:
    return _pod(_SLICE, None, **spec)


def _containers(count: int, limits: Callable[[int], Mapping[str, str]]) -> list[Json]:
    return [
        {"name": f"c{number}", "resources": {"limits": (found := limits(number)), "requests": found}}
        for number in range(count)
    ]


def _profiles(number: int) -> Mapping[str, str]:
    return {f"nvidia.com/mig-{number}g.{each}gb": "1" for each in range(60)}


def _exists() -> Json:
    return {"key": "kubernetes.io/hostname", "operator": "Exists"}


def _filled_terms() -> list[Json]:
    return [{"matchExpressions": [_exists()]} for _ in range(NODE_AFFINITY_TERMS)]


def _integers() -> bytes:
    number = b"9" * 300 + b","
    return review(_sliced(a=[0])).replace(b"[0]", b"[" + number * (SIZE // len(number)) + b"0]")


_PODS: dict[str, Callable[[], Json | bytes]] = {
    "a slice, nothing else": _sliced,
    "requirements, nothing else": lambda: _needing(gpu_memory="10Gi"),
    # Annotations.
    "compute capability: blanks": lambda: _needing(compute_capability=" " * SIZE),
    "compute capability: >= and digits": lambda: _needing(compute_capability=">=" + "9" * SIZE + ".0"),
    "compute capability: many bounds": lambda: _needing(compute_capability=",".join([">=8.0"] * 170)),
    "product: A1|A1|...": lambda: _needing(product="A1|" * (SIZE // 3) + "A1"),
    "product: as many as are read": lambda: _needing(product="|".join(["-a" * 14] * PRODUCTS)),
    "product: one of many words": lambda: _needing(product="A " * 511),
    "memory: digits": lambda: _needing(gpu_memory="9" * SIZE),
    "memory: 1e999999999": lambda: _needing(gpu_memory="1e999999999"),
    "annotations of ours": lambda: _pod(None, {f"tessera.dev/gpu-memori{n}": "1" for n in range(SIZE // 35)}),
    "one long annotation nearly ours": lambda: _pod(_SLICE, {"tessera.dev/" + "gpu-memory" * (SIZE // 10): "1"}),
    "annotations of others": lambda: _pod(_SLICE, {f"example.com/{n}": "1" for n in range(SIZE // 24)}),
    # Node affinity.
    "12,000 alternatives": lambda: _sliced(affinity=_affinity(_tests(12_000, _in))),
    "alternatives as many as are read": lambda: _sliced(affinity=_affinity(_tests(NODE_AFFINITY_TERMS, _in))),
    "alternatives: Gt": lambda: _sliced(
        affinity=_affinity(
            _tests(NODE_AFFINITY_TERMS, lambda n: {"key": "example.com/rank", "operator": "Gt", "values": [str(n)]})
        )
    ),
    "alternatives: NotIn, 30 labels": lambda: _sliced(
        affinity=_affinity(
            _tests(
                NODE_AFFINITY_TERMS,
                lambda n: {"key": f"example.com/label-{n % 26}", "operator": "NotIn", "values": [f"value-{n}"]},
            )
        )
    ),
    "alternatives: Exists": lambda: _sliced(
        affinity=_affinity(
            _tests(NODE_AFFINITY_TERMS, lambda n: {"key": f"example.com/label-{n % 26}", "operator": "Exists"})
        )
    ),
    "one alternative of many tests": lambda: _sliced(
        affinity=_affinity([{"matchExpressions": [_in(n) for n in range(NODE_AFFINITY_EXPRESSIONS)]}])
    ),
    "one test of many values": lambda: _sliced(
        affinity=_affinity(
            [
                {
                    "matchExpressions": [
                        {
                            "key": "kubernetes.io/hostname",
                            "operator": "In",
                            "values": [f"node-{n}" for n in range(NODE_AFFINITY_VALUES)],
                        }
                    ]
                }
            ]
        )
    ),
    "Gt: digits": lambda: _sliced(
        affinity=_affinity([{"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["9" * SIZE]}]}])
    ),
    "layouts on demand, no node": lambda: _sliced(
        nodeSelector={"a": "b"},
        affinity=_affinity(
            _tests(
                NODE_AFFINITY_TERMS // 2,
                lambda n: {
                    "key": "nvidia.com/mig.config",
                    "operator": "In",
                    "values": [f"dynamic-{n}-{each}" for each in range(100)],
                },
            )
        ),
    ),
    "requirements x alternatives": lambda: (
        _needing(product="A100", nvlink="true") | {"spec": {"containers": [{}], "affinity": _affinity(_filled_terms())}}
    ),
    "requirements, alternatives as many as fit": lambda: (
        _needing(product="A100", nvlink="true")
        | {"spec": {"containers": [{}], "affinity": _affinity([{"matchExpressions": [_exists()]}] * 4)}}
    ),
    "node selector": lambda: _sliced(nodeSelector={f"example.com/{n}": "1" for n in range(SIZE // 24)}),
    "node selector as long as is read": lambda: _sliced(
        nodeSelector={f"example.com/{n}": "1" for n in range(NODE_SELECTOR_LABELS)}
    ),
    # Containers and resources.
    "containers": lambda: _sliced(initContainers=_filled(lambda n: {"name": f"c{n}"})),
    "containers as many as are read": lambda: _sliced(
        initContainers=_containers(
            POD_CONTAINERS - 1, lambda _: {f"nvidia.com/mig-{each}": "1" for each in _PROFILES[:2]}
        )
    ),
    "containers x profiles": lambda: _sliced(initContainers=_containers(POD_CONTAINERS - 1, _profiles)),
    "profiles": lambda: _pod({f"nvidia.com/mig-{n}g.5gb": "1" for n in range(SIZE // 70)}),
    "profiles as many as are read": lambda: _pod({f"nvidia.com/mig-{n}g.5gb": "1" for n in range(POD_QUANTITIES // 2)}),
    "resources above one": lambda: _pod({f"nvidia.com/gpu-{n}": "2" for n in range(SIZE // 54)}),
    "resources of other slicers": lambda: _pod({f"mig.das.com/{n}g.5gb": "0" for n in range(SIZE // 60)}),
    "quantities: digits and an x": lambda: _pod({f"nvidia.com/mig-{n}": "9" * 60 + "x" for n in range(SIZE // 180)}),
    "quantity: 1e999999999": lambda: _pod({"nvidia.com/mig-1g.5gb": "1e999999999"}),
    "quantity: long": lambda: _pod({"nvidia.com/mig-1g.5gb": "9" * (SIZE // 2)}),
    "quantity: integer of 5,000 digits": lambda: review(_sliced()).replace(b'"1"', b"9" * 5000),
    "profile: long name": lambda: _pod({"nvidia.com/mig-" + "1g.5gb" * (SIZE // 12): "1"}),
    "profile: digits": lambda: _pod({"nvidia.com/mig-" + "9" * (SIZE // 2) + "g.5gb": "1"}),
    "environment": lambda: _sliced(initContainers=[{"env": _filled(lambda n: {"name": f"E{n}", "value": ""})}]),
    "scheduling gates": lambda: _sliced(schedulingGates=_filled(lambda n: {"name": f"example.com/{n}"})),
    "tolerations": lambda: _sliced(tolerations=_filled(lambda n: {"key": f"k{n}", "operator": "Exists"})),
    "container: long name": lambda: {
        "spec": {"containers": [{"name": "c" * SIZE, "resources": {"limits": {"nvidia.com/mig-x": "1"}}}]}
    },
    # JSON.
    "nested lists": lambda: review(_sliced()).replace(b'"metadata":{', b'"metadata":{"a":' + b"[" * SIZE),
    "nested lists that close": lambda: review(_sliced()).replace(
        b'"metadata":{', b'"metadata":{"a":' + b"[" * (SIZE // 2) + b"]" * (SIZE // 2) + b","
    ),
    "integers of 300 digits": _integers,
    "escapes": lambda: review(_sliced(a="@")).replace(b"@", rb"\u0001" * (SIZE // 6)),
    "bytes that are no text": lambda: review(_sliced(a="@")).replace(b"@", b"\xff" * SIZE),
}


if __name__ == "__main__":
    main()
