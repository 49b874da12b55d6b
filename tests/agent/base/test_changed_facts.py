"""A change of the Node or of a pod wakes only those whom it concerns."""

from typing import Any

import msgspec
import pytest

from tessera.agent.base.change_notifier import Fact
from tessera.agent.base.node_objects import changed_facts, changed_pod_facts
from tessera.kube.resources import Node, Pod
from tessera.kube.watch.cache import EventKind, WatchEvent

BEFORE: dict[str, Any] = {
    "metadata": {"name": "n1", "uid": "u1", "labels": {"team": "a"}, "annotations": {"example.com/seen": "1"}},
    "status": {"conditions": [{"type": "Ready", "status": "True"}], "capacity": {"nvidia.com/gpu": "1"}},
}


@pytest.mark.parametrize(
    ("metadata", "status", "facts"),
    [
        ({"annotations": {"example.com/seen": "2"}}, {}, Fact(0)),
        ({"labels": {"team": "b"}}, {}, Fact(0)),
        ({"labels": {"nvidia.com/gpu.count": "1"}}, {}, Fact.NODE),
        ({"labels": {"nvidia.com/mig.config": "dynamic"}}, {}, Fact.NODE | Fact.DESIRED_LAYOUT),
        ({"annotations": {"tessera.dev/offers": "[]"}}, {}, Fact.NODE | Fact.NODE_ANNOTATIONS),
        ({}, {"conditions": []}, Fact.NODE),
        ({}, {"capacity": {}}, Fact.NODE_STATUS),
    ],
)
def test_a_change_of_the_node(metadata: dict[str, Any], status: dict[str, Any], facts: Fact) -> None:
    now = {"metadata": {**BEFORE["metadata"], **metadata}, "status": {**BEFORE["status"], **status}}
    old, new = msgspec.convert(BEFORE, Node), msgspec.convert(now, Node)
    assert changed_facts(WatchEvent(EventKind.MODIFIED, new, old)) == facts


@pytest.mark.parametrize(
    ("spec", "status", "facts"),
    [
        ({"containers": [{"resources": {"limits": {"cpu": "1", "hugepages-2Mi": "4Mi"}}}]}, {}, Fact(0)),
        ({"containers": [{"resources": {"limits": {"nvidia.com/gpu": "1"}}}]}, {}, Fact.PODS),
        ({"initContainers": [{"resources": {"limits": {"team.example/half-card": "1"}}}]}, {}, Fact.PODS),
        ({"resourceClaims": [{"name": "card"}]}, {}, Fact.PODS),
        ({}, {"conditions": [{"type": "tessera.dev/GpuHealthy", "status": "False"}]}, Fact.PODS | Fact.TOLD_PODS),
    ],
)
def test_a_change_of_a_pod(spec: dict[str, Any], status: dict[str, Any], facts: Fact) -> None:
    containers = {"containers": [], **spec}
    for each in (*containers["containers"], *containers.get("initContainers", ())):
        each["name"] = "main"
    pod = msgspec.convert({"metadata": {"name": "p", "uid": "p1"}, "spec": containers, "status": status}, Pod)
    assert changed_pod_facts(WatchEvent(EventKind.ADDED, pod)) == facts
