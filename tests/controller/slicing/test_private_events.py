"""Events on a pod name no pod of another namespace: who reads them may not see those pods."""

from dataclasses import replace
from typing import Any

import pytest
from tests.support.slicer_cluster import SlicerCluster

from tessera.api.names import HOSTNAME_LABEL, NodeName
from tessera.api.pod_annotations import Gang
from tessera.clock import rfc3339
from tessera.controller.base import MoveMode, MoveSettings
from tessera.controller.objects.pod_constraints import NodeConstraints
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.slicing.state.messages import name_for

OTHERS, MINE = "team-a", "team-b"


def make(**options: Any) -> SlicerCluster:
    cluster = SlicerCluster(reserve_after=60.0, **options)
    cluster.pass_time(0)
    return cluster


def waiting(cluster: SlicerCluster, name: str, *profiles: str, **facts: Any) -> PodInfo:
    return cluster.pod(name, *profiles, created=rfc3339(cluster.date), **facts)


def running(cluster: SlicerCluster, name: str, *profiles: str, **facts: Any) -> PodInfo:
    pod = waiting(cluster, name, *profiles, **facts)
    cluster.settle()
    ((node, _, _), *_) = cluster.where(pod)
    return cluster.put(replace(cluster.pods[pod.uid], node=NodeName(node), started=cluster.date))


def told(cluster: SlicerCluster, reason: str, name: str = "mine") -> str:
    """The event of this reason on a pod, which names nothing of the other namespace."""
    cluster.settle_and_wait(61)
    (*_, found) = [each.message for each in cluster.told if (each.name, each.reason) == (name, reason)]
    assert OTHERS not in found
    return found


def test_who_is_in_the_way() -> None:
    cluster = make()
    cluster.node("n1")
    running(cluster, "web", "3g.20gb", namespace=OTHERS)
    running(cluster, "own", "3g.20gb", namespace=MINE)
    waiting(cluster, "mine", "7g.40gb", namespace=MINE)
    waits, reserved = told(cluster, "SliceWaiting"), told(cluster, "SliceReserved")
    assert "a pod of another namespace (3g.20gb on GPU 0, memory slots " in waits
    assert f"{MINE}/own (3g.20gb on GPU 0, memory slots " in waits
    assert f"free when {MINE}/own, a pod of another namespace end" in reserved


def test_only_what_no_node_can_take_is_a_warning() -> None:
    cluster = make()
    cluster.node("n1")
    running(cluster, "web", "7g.40gb", namespace=OTHERS)
    waiting(cluster, "full", "1g.5gb", namespace=MINE)
    waiting(cluster, "large", *["7g.40gb"] * 9, namespace=MINE)
    waiting(cluster, "elsewhere", "1g.5gb", namespace=MINE, constraints=NodeConstraints(selector=(("rack", "r9"),)))
    cluster.settle()
    kinds = {each.name: each.warning for each in cluster.told if each.reason == "SliceWaiting"}
    assert kinds == {"full": False, "large": True, "elsewhere": True}


def test_who_goes_first() -> None:
    cluster = make()
    cluster.node("n1")
    holders = [running(cluster, f"web{i}", "3g.20gb", namespace=OTHERS) for i in range(2)]
    waiting(cluster, "large", "7g.40gb", namespace=OTHERS)
    cluster.settle_and_wait(61)
    cluster.remove(holders[0])
    waiting(cluster, "mine", "3g.20gb", namespace=MINE)
    assert "reserved for 1 pod that goes first; first goes a pod of another namespace" in told(cluster, "SliceWaiting")


def test_what_keeps_a_gang_waiting() -> None:
    cluster = make()
    cluster.node("n1")
    running(cluster, "web", "7g.40gb", namespace=OTHERS)
    gang = Gang(f"{MINE}/tessera.dev/gang=train", "train", 2)
    for name in ("mine", "second"):
        waiting(cluster, name, "3g.20gb", namespace=MINE, gang=gang)
    assert f"{MINE}/mine finds no place beside the others" in told(cluster, "SliceWaiting")
    assert "a pod of another namespace" in told(cluster, "SliceReserved")


def test_for_whom_a_pod_is_preempted() -> None:
    cluster = make(preempts=True)
    cluster.node("n1")
    running(cluster, "mine", "7g.40gb", namespace=MINE)
    waiting(cluster, "high", "7g.40gb", namespace=OTHERS, priority=10)
    assert "a pod of another namespace of priority 10 needs its slices" in told(cluster, "SlicePreempted")


@pytest.mark.parametrize(("large", "small"), [(OTHERS, MINE), (MINE, OTHERS)])
def test_for_whom_a_pod_moves_and_who_would(large: str, small: str) -> None:
    moves = MoveMode.EVICT if small == MINE else MoveMode.RECOMMEND
    cluster = make(moves=MoveSettings(mode=moves, per_hour=20))
    for name in ("n1", "n2"):
        cluster.node(name)
    facts: dict[str, Any] = {"movable": True, "owner": "owner", "namespace": small}
    running(cluster, "mine" if small == MINE else "small", "1g.5gb", constraints=on("n1"), **facts)
    running(cluster, "half", "4g.20gb", constraints=on("n2"))
    cluster.pass_time(600)
    waiting(cluster, "mine" if large == MINE else "large", "7g.40gb", namespace=large)
    if small == MINE:
        assert told(cluster, "SliceMoved").startswith("Evicted, because a pod of another namespace needs 7g.40gb")
    else:
        assert "if a pod of another namespace ended" in told(cluster, "SliceRoomByMoves")


def on(node: str) -> NodeConstraints:
    return NodeConstraints(selector=((HOSTNAME_LABEL, node),))


def test_slices_that_no_pod_explains_are_described() -> None:
    """Their owner is no pod, so nothing is hidden."""
    assert name_for(MINE, "an instance that Tessera did not make") == "an instance that Tessera did not make"
