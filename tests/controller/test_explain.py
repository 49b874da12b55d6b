"""``why``: one answer, the first thing in the way."""

from typing import Any

import pytest

from tessera.api.names import GATE
from tessera.controller.explain import explain, explain_absence, state_of
from tessera.kube.resources import (
    Condition,
    Container,
    Node,
    NodeStatus,
    ObjectMeta,
    Pod,
    PodSpec,
    PodStatus,
    ResourceQuota,
    ResourceQuotaStatus,
    ResourceRequirements,
    SchedulingGate,
    Uid,
)

World = Any  # the class lives in conftest.py, which tests cannot import


def node(name: str) -> Node:
    labels = {"nvidia.com/mig.config": "dynamic", "kubernetes.io/hostname": name}
    status = NodeStatus(
        allocatable={"cpu": "64", "memory": "1Ti", "pods": "110"}, conditions=(Condition(type="Ready", status="True"),)
    )
    return Node(metadata=ObjectMeta(name=name, labels=labels), status=status)


def pod(name: str, *gates: str, profile: str = "7g.40gb", phase: str = "Pending", **spec: Any) -> Pod:
    limits = {f"nvidia.com/mig-{profile}": "1"} if profile else {}
    return Pod(
        metadata=ObjectMeta(name=name, namespace="team", uid=Uid(f"uid-{name}")),
        spec=PodSpec(
            containers=(Container(name="c", resources=ResourceRequirements(limits=limits)),),
            scheduling_gates=tuple(SchedulingGate(name=gate) for gate in gates),
            **spec,
        ),
        status=PodStatus(phase=phase),
    )


def answer(world: World, *pods: Pod) -> tuple[str, str]:
    """About the last of them."""
    found = explain(state_of(pods, [node(name) for name in world.nodes], map(world.read, world.objects)), pods[-1])
    return (found.held_by, found.text)


@pytest.mark.parametrize(
    ("asked", "held_by", "words"),
    [
        (pod("a", profile=""), "nothing", "asks for no slice"),
        (pod("a", phase="Succeeded"), "nothing", "has ended"),
        (pod("a", "kueue.x-k8s.io/admission", GATE), "gate", "kueue.x-k8s.io/admission"),
        (pod("a", GATE, profile="3g.20g"), "room", "did you mean"),
        (pod("a", GATE), "controller", "There is room for 7g.40gb at slot 0"),
        (pod("a"), "scheduler", "not behind Tessera's gate"),
        (pod("a", node_name="elsewhere"), "nothing", "not sliced on demand"),
    ],
)
def test_the_first_thing_in_the_way(world: World, asked: Pod, held_by: str, words: str) -> None:
    world.node("n1")
    found = answer(world, asked)
    assert found[0] == held_by
    assert words in found[1]


def test_a_full_card_says_who_must_end(world: World) -> None:
    world.node("n1")
    world.pod("first", "7g.40gb")
    world.settle()
    first = pod("first", node_name="n1", phase="Running")
    held_by, text = answer(world, first, pod("second", GATE))
    assert held_by == "room"
    assert "full" in text
    assert "default/first" in text


def test_a_promise_says_whom_it_waits_for(world: World) -> None:
    world.node("n1")
    world.pod("a", "7g.40gb")
    world.run()
    assert answer(world, pod("a"))[0] == "agent"
    world.agents()
    assert answer(world, pod("a"))[0] == "scheduler"
    held_by, text = answer(world, pod("a", node_name="n1", phase="Running"))
    assert (held_by, "on node n1" in text) == ("nothing", True)


def test_a_pod_that_was_not_created_may_be_over_quota() -> None:
    name = "requests.instaslice.redhat.com/accelerator-memory-quota"
    quota = ResourceQuota(
        metadata=ObjectMeta(name="gpu"),
        status=ResourceQuotaStatus(hard={name: "5Gi", "pods": "1"}, used={name: "5Gi", "pods": "1"}),
    )
    found = explain_absence([quota])
    assert found.held_by == "quota"
    assert "nothing is left" in found.text
    assert explain_absence([]).held_by == "nothing"
