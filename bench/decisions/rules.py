"""Pods with rules about other pods, each at the limits of :mod:`tessera.limits`, and an honest cluster with some."""

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from bench.decisions.cluster import pod_of

from tessera.api.names import (
    HOSTNAME_LABEL,
)
from tessera.kube.resources import Pod

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


RULE_CASES: dict[str, Callable[[], Iterator[Pod]]] = {
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
}
