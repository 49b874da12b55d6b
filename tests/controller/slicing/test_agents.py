"""A node is given slices only while its agent serves and kubelet offers what is promised."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from tests.support.slicer_world import SlicerWorld

from tessera.api.names import GATE, NodeName
from tessera.controller.objects.node_info import AgentState, read_node
from tessera.controller.objects.pod_info import PodInfo, read_pod
from tessera.controller.slicing.events import NodeObserved
from tessera.kube.resources import Node, Pod

MIG, QUOTA = "nvidia.com/mig-1g.5gb", "instaslice.redhat.com/accelerator-memory-quota"


def agent_pod(node: str, *, ready: bool = True, suffix: str = "", **meta: Any) -> PodInfo:
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "tessera-agent", "controller": True}
    name = f"agent-{node}{suffix}"
    body = {
        "metadata": {"name": name, "namespace": "tessera-system", "uid": name, "ownerReferences": [owner], **meta},
        "spec": {"nodeName": node, "containers": [{"name": "agent"}]},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True" if ready else "False"}]},
    }
    return read_pod(msgspec.convert(body, Pod))


def states(world: SlicerWorld) -> dict[NodeName, AgentState]:
    return {name: node.agent for name, node in world.slicer.state.cluster.nodes.items()}


def test_six_pods_go_elsewhere_while_an_agent_is_down_and_back_when_it_serves(world: SlicerWorld) -> None:
    """The node of a dead agent is the fullest, so it was everybody's favourite."""
    for name in ("n1", "n2"):
        world.node(name)
        world.put(agent_pod(name))
    world.pod("first", "1g.5gb")
    world.settle()
    (home,) = {place[0] for item in world.pods.values() for place in world.where(item)}
    other = "n2" if home == "n1" else "n1"
    world.put(agent_pod(home, ready=False))
    later = [world.pod(f"p{number}", "1g.5gb") for number in range(6)]
    world.settle()
    assert {world.where(pod)[0][0] for pod in later} == {other}
    late = world.pod("late", "3g.20gb")
    world.settle()
    assert world.where(late) == []
    world.put(agent_pod(home))
    world.settle()
    assert world.where(late)[0][0] == home


def test_the_agent_is_named_where_it_is_all_that_is_in_the_way(world: SlicerWorld) -> None:
    world.node("n1")
    world.put(agent_pod("n1", ready=False))
    world.pod("p", "1g.5gb")
    world.settle()
    assert "1 node(s) had no agent that is ready" in world.told[-1].message


def test_a_promise_to_a_gated_pod_is_taken_back_when_the_agent_goes(world: SlicerWorld) -> None:
    world.node("n1")
    world.node("n2")
    agents = {name: world.put(agent_pod(name)) for name in ("n1", "n2")}
    pod = world.pod("p", "1g.5gb")
    world.slicer.decide()
    (promise,) = world.slicer.state.allocations
    other = {"n1": "n2", "n2": "n1"}[promise.node]
    world.put(replace(agents[promise.node], agent_ready=False))
    world.settle()
    assert [place[0] for place in world.where(pod)] == [other]


@pytest.mark.parametrize(
    ("pods", "state"),
    [
        ([], AgentState.UNKNOWN),
        ([agent_pod("n1")], AgentState.READY),
        ([agent_pod("n1", ready=False)], AgentState.DOWN),
        ([agent_pod("n1", ready=False), agent_pod("n1", suffix="-new")], AgentState.READY),
        ([agent_pod("n2")], AgentState.UNKNOWN),
        ([agent_pod("n1", namespace="tenant")], AgentState.UNKNOWN),
        ([agent_pod("n1", ownerReferences=[])], AgentState.UNKNOWN),
    ],
)
def test_what_is_known_of_an_agent(world: SlicerWorld, pods: list[PodInfo], state: AgentState) -> None:
    for pod in pods:
        world.put(pod)
    world.node("n1")
    assert states(world)[NodeName("n1")] is state
    for pod in pods:
        world.remove(pod)
    assert states(world)[NodeName("n1")] is AgentState.UNKNOWN


def asking(name: str, *, gated: bool = True, node: str = "", **limits: str) -> PodInfo:
    wanted = {{"mig": MIG, "quota": QUOTA}[key]: amount for key, amount in limits.items()}
    body = {
        "metadata": {"name": name, "namespace": "team", "uid": name, "creationTimestamp": name},
        "spec": {
            "schedulingGates": [{"name": GATE}] if gated else [],
            "nodeName": node,
            "containers": [{"name": "c", "resources": {"limits": wanted}}],
        },
    }
    return read_pod(msgspec.convert(body, Pod))


def published(world: SlicerWorld, name: str, **allocatable: str) -> None:
    named = {{"mig": MIG, "quota": QUOTA}.get(key, key): amount for key, amount in allocatable.items()}
    body = {
        "metadata": {"name": name, "labels": {"nvidia.com/mig.config": "dynamic", "kubernetes.io/hostname": name}},
        "status": {
            "allocatable": {"cpu": "8", "memory": "8Gi", "pods": "110", **named},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }
    facts = world.nodes[NodeName(name)] = read_node(msgspec.convert(body, Node))
    world.slicer.handle(NodeObserved(facts))


def test_a_node_whose_devices_kubelet_counts_0_is_given_nothing_more(world: SlicerWorld) -> None:
    world.node("n1")
    published(world, "n1", mig="7", quota="40Gi")
    first, second = world.put(asking("a", mig="1")), asking("b", mig="1")
    world.settle()
    assert len(world.where(first)) == 1
    published(world, "n1", mig="0", quota="40Gi")
    world.put(second)
    world.settle()
    assert world.where(second) == []
    assert f"Insufficient {MIG}" in world.told[-1].message
    published(world, "n1", mig="7", quota="40Gi")
    world.settle()
    assert len(world.where(second)) == 1


def test_a_pod_that_holds_the_quota_alone_is_counted_before_a_promise(world: SlicerWorld) -> None:
    """It was there before the webhook refused such pods; kube-scheduler counts it, so the promise would be in vain."""
    world.node("n1")
    published(world, "n1", mig="7", quota="40Gi")
    thief = world.put(asking("a", gated=False, node="n1", quota="38Gi"))
    pods = [world.put(asking(f"p{number}", mig="1", quota="5Gi")) for number in range(2)]
    world.settle()
    assert [world.where(pod) for pod in pods] == [[], []]
    assert f"Insufficient {QUOTA}" in world.told[-1].message
    world.remove(thief)
    world.settle()
    assert all(world.where(pod) for pod in pods)


def test_a_full_node_is_said_to_be_full_though_its_devices_are_all_counted_too(world: SlicerWorld) -> None:
    world.node("n1")
    published(world, "n1", mig="7", quota="35Gi")
    pods = [world.put(asking(f"p{number}", mig="1", quota="5Gi")) for number in range(8)]
    world.settle()
    assert sum(bool(world.where(pod)) for pod in pods) == 7
    assert "every card is full" in world.told[-1].message
