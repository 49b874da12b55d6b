"""Pods that are as costly to judge as an author can make them: each waits with the reason, and nobody else for it."""

import asyncio
import itertools
from typing import Any

import msgspec

from tessera.api.names import GATE
from tessera.controller.facts import PodFacts, pod_facts
from tessera.controller.instructions import Tell
from tessera.controller.reign import settle
from tessera.kube.resources import Pod
from tessera.limits import DECISION_STEPS

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
        assert "node affinity has 12,000 terms, at most 100 terms are allowed" in tell.message
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


def test_pods_that_no_node_can_hold_are_refused_step_by_step_and_the_last_one_gets_its_slice(world: World) -> None:
    """3,000 pods that differ in what they ask: each would be held against 1,000 nodes, in one decision, 6 s long."""
    for number in range(100):
        world.node(f"n{number}")
    for number in range(1500):
        world.pod(f"h{number}", "1g.5gb", amounts={"cpu": 100_000 + number}, created="1")
    innocent = world.pod("z", "1g.5gb", created="2")
    spent = []
    while world.slicer.has_work:
        spent.append(steps_of(world))
        for instruction in world.slicer.take():
            world.answer(instruction)
    assert world.where(innocent) != []
    assert len(world.slicer.waiting) == len(world.told) == 1500
    assert max(spent) < DECISION_STEPS * 1.1
    world.remove(innocent)
    world.settle()
    assert steps_of(world) == 0


def test_a_freed_slot_is_offered_to_all_in_one_step(world: World) -> None:
    for number in range(50):
        world.node(f"n{number}")
    holder = world.pod("holder", "1g.5gb")
    world.settle()
    for number in range(100):
        world.pod(f"h{number}", "1g.5gb", amounts={"cpu": 100_000 + number})
    world.run()
    world.remove(holder)
    world.agents()
    assert steps_of(world) < DECISION_STEPS
    assert not world.slicer.has_work


def steps_of(world: World) -> int:
    """The work that one decision took."""
    before = world.slicer.work
    world.slicer.decide()
    return int(world.slicer.work - before)


def test_everything_else_has_its_turn_between_two_steps(world: World) -> None:
    """The lease is renewed by the same event loop: one long decision lost it."""
    for number in range(100):
        world.node(f"n{number}")
    for number in range(1500):
        world.pod(f"h{number}", "1g.5gb", amounts={"cpu": 100_000 + number})
    trace: list[str] = []

    def step() -> None:
        trace.append("step")
        world.slicer.decide()
        world.slicer.take()

    async def other() -> None:
        while True:
            trace.append("other")
            await asyncio.sleep(0)

    async def run() -> None:
        beside = asyncio.create_task(other())
        await settle(world.slicer, step)
        beside.cancel()

    asyncio.run(run())
    assert trace.count("step") > 5
    assert all(pair != ("step", "step") for pair in itertools.pairwise(trace))
