"""Pods that are as costly to judge as an author can make them: each waits with the reason, and nobody else for it."""

from typing import Any

import msgspec

from tessera.api.names import GATE
from tessera.controller.facts import PodFacts, pod_facts
from tessera.controller.instructions import Tell
from tessera.kube.resources import Pod

World = Any  # the class lives in conftest.py, which tests cannot import


def pod(name: str, created: str = "2026-01-01T00:00:00Z", **spec: Any) -> PodFacts:
    limits = {"nvidia.com/mig-1g.5gb": "1"}
    body = {
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}", "creationTimestamp": created},
        "spec": {
            "schedulingGates": [{"name": GATE}],
            "containers": [{"name": "c", "resources": {"limits": limits}}],
            **spec,
        },
    }
    return pod_facts(msgspec.convert(body, Pod))


def terms(prefix: str, count: int) -> dict[str, Any]:
    rows = [
        {"matchExpressions": [{"key": "zone", "operator": "In", "values": [f"{prefix}-{i}"]}]} for i in range(count)
    ]
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": rows}}}


def told(world: World, one: PodFacts) -> list[Tell]:
    return [tell for tell in world.told if tell.uid == one.uid]


def test_a_pod_with_12_000_terms_waits_and_is_told_the_limit(world: World) -> None:
    world.node("n1")
    hostile = [world.put(pod(f"h{i}", affinity=terms(f"h{i}", 12_000))) for i in range(4)]
    innocent = world.put(pod("z", created="2026-01-02T00:00:00Z"))
    world.settle()
    assert [place[0] for place in world.where(innocent)] == ["n1"]
    for one in hostile:
        assert world.where(one) == []
        (tell,) = told(world, one)
        assert (tell.reason, tell.warning) == ("SliceRefused", True)
        assert "node affinity has 12,000 terms, at most 100 terms are considered" in tell.message
    assert world.slicer.index.cost < 100


def test_a_pod_over_a_limit_that_runs_already_keeps_its_slice_and_counts_on_its_node(world: World) -> None:
    world.node("n1")
    one = world.put(pod("a"))
    world.settle()
    containers = [{"name": f"c{i}", "resources": {"requests": {"cpu": "1"}}} for i in range(300)]
    containers[0]["resources"] = {"requests": {"cpu": "1"}, "limits": {"nvidia.com/mig-1g.5gb": "1"}}
    facts = pod("a", schedulingGates=[], nodeName="n1", containers=containers)
    assert facts.fault
    world.put(facts)
    world.settle()
    assert len(world.where(one)) == 1
    assert world.slicer.used["n1"]["cpu"] == 300_000


def test_judging_the_same_pods_again_at_a_release_compares_nothing_again(world: World) -> None:
    world.node("n1")
    holder = world.pod("holder", "7g.40gb")
    world.settle()
    for i in range(300):
        world.put(pod(f"h{i:03}", affinity=terms(f"h{i}", 100)))
    world.settle()
    cost = world.slicer.index.cost
    assert cost >= 300 * 100
    world.remove(holder)
    world.settle()
    assert world.slicer.index.cost == cost
