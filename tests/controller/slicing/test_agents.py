"""A node is given slices only while its agent serves and kubelet offers what is promised."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from tests.support.slicer_cluster import SlicerCluster

from tessera.api.names import GATE, NodeName
from tessera.controller.objects.node_info import AgentState, read_node
from tessera.controller.objects.pod_info import PodInfo, read_pod
from tessera.controller.slicing.state.events import NodeObserved
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


def states(cluster: SlicerCluster) -> dict[NodeName, AgentState]:
    return {name: node.agent for name, node in cluster.slicer.state.cluster.nodes.items()}


def test_six_pods_go_elsewhere_while_an_agent_is_down_and_back_when_it_serves(cluster: SlicerCluster) -> None:
    """The node of a dead agent is the fullest, so it was everybody's favourite."""
    for name in ("n1", "n2"):
        cluster.node(name)
        cluster.put(agent_pod(name))
    cluster.pod("first", "1g.5gb")
    cluster.settle()
    (home,) = {place[0] for item in cluster.pods.values() for place in cluster.where(item)}
    other = "n2" if home == "n1" else "n1"
    cluster.put(agent_pod(home, ready=False))
    later = [cluster.pod(f"p{number}", "1g.5gb") for number in range(6)]
    cluster.settle()
    assert {cluster.where(pod)[0][0] for pod in later} == {other}
    late = cluster.pod("late", "3g.20gb")
    cluster.settle()
    assert cluster.where(late) == []
    cluster.put(agent_pod(home))
    cluster.settle()
    assert cluster.where(late)[0][0] == home


def test_the_agent_is_named_where_it_is_all_that_is_in_the_way(cluster: SlicerCluster) -> None:
    cluster.node("n1")
    cluster.put(agent_pod("n1", ready=False))
    cluster.pod("p", "1g.5gb")
    cluster.settle()
    assert "1 node(s) had no agent that is ready" in cluster.told[-1].message


def test_a_promise_to_a_gated_pod_is_taken_back_when_the_agent_goes(cluster: SlicerCluster) -> None:
    cluster.node("n1")
    cluster.node("n2")
    agents = {name: cluster.put(agent_pod(name)) for name in ("n1", "n2")}
    pod = cluster.pod("p", "1g.5gb")
    cluster.slicer.decide()
    (promise,) = cluster.slicer.state.allocations
    other = {"n1": "n2", "n2": "n1"}[promise.node]
    cluster.put(replace(agents[promise.node], agent_ready=False))
    cluster.settle()
    assert [place[0] for place in cluster.where(pod)] == [other]


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
def test_what_is_known_of_an_agent(cluster: SlicerCluster, pods: list[PodInfo], state: AgentState) -> None:
    for pod in pods:
        cluster.put(pod)
    cluster.node("n1")
    assert states(cluster)[NodeName("n1")] is state
    for pod in pods:
        cluster.remove(pod)
    assert states(cluster)[NodeName("n1")] is AgentState.UNKNOWN


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


def published(cluster: SlicerCluster, name: str, **allocatable: str) -> None:
    named = {{"mig": MIG, "quota": QUOTA}.get(key, key): amount for key, amount in allocatable.items()}
    body = {
        "metadata": {"name": name, "labels": {"nvidia.com/mig.config": "dynamic", "kubernetes.io/hostname": name}},
        "status": {
            "allocatable": {"cpu": "8", "memory": "8Gi", "pods": "110", **named},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }
    facts = cluster.nodes[NodeName(name)] = read_node(msgspec.convert(body, Node))
    cluster.slicer.handle(NodeObserved(facts))


def test_a_node_whose_devices_kubelet_counts_0_is_given_nothing_more(cluster: SlicerCluster) -> None:
    cluster.node("n1")
    published(cluster, "n1", mig="7", quota="40Gi")
    first, second = cluster.put(asking("a", mig="1")), asking("b", mig="1")
    cluster.settle()
    assert len(cluster.where(first)) == 1
    published(cluster, "n1", mig="0", quota="40Gi")
    cluster.put(second)
    cluster.settle()
    assert cluster.where(second) == []
    assert f"Insufficient {MIG}" in cluster.told[-1].message
    published(cluster, "n1", mig="7", quota="40Gi")
    cluster.settle()
    assert len(cluster.where(second)) == 1


def test_a_pod_that_holds_the_quota_alone_is_counted_before_a_promise(cluster: SlicerCluster) -> None:
    """It was there before the webhook refused such pods; kube-scheduler counts it, so the promise would be in vain."""
    cluster.node("n1")
    published(cluster, "n1", mig="7", quota="40Gi")
    thief = cluster.put(asking("a", gated=False, node="n1", quota="38Gi"))
    pods = [cluster.put(asking(f"p{number}", mig="1", quota="5Gi")) for number in range(2)]
    cluster.settle()
    assert [cluster.where(pod) for pod in pods] == [[], []]
    assert f"Insufficient {QUOTA}" in cluster.told[-1].message
    cluster.remove(thief)
    cluster.settle()
    assert all(cluster.where(pod) for pod in pods)


def test_a_full_node_is_said_to_be_full_though_its_devices_are_all_counted_too(cluster: SlicerCluster) -> None:
    cluster.node("n1")
    published(cluster, "n1", mig="7", quota="35Gi")
    pods = [cluster.put(asking(f"p{number}", mig="1", quota="5Gi")) for number in range(8)]
    cluster.settle()
    assert sum(bool(cluster.where(pod)) for pod in pods) == 7
    assert "every card that it may use is full" in cluster.told[-1].message
