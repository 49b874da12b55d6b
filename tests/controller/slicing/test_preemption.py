"""Preemption: pods of lower priority are evicted for a waiting pod; off by default."""

from dataclasses import replace
from typing import Any

import pytest
from tests.support.slicer_cluster import SlicerCluster

from tessera.api.names import NodeName
from tessera.clock import rfc3339
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.slicing.state.instructions import Evict


@pytest.fixture
def cluster() -> SlicerCluster:
    made = SlicerCluster(reserve_after=60.0, preempts=True)
    made.pass_time(0)
    return made


def running(cluster: SlicerCluster, name: str, *profiles: str, **facts: Any) -> PodInfo:
    """A pod that runs."""
    pod = waiting(cluster, name, *profiles, **facts)
    ((node, *_), *_) = cluster.where(pod)
    return cluster.put(replace(cluster.pods[pod.uid], node=NodeName(node), started=cluster.date))


def waiting(cluster: SlicerCluster, name: str, *profiles: str, **facts: Any) -> PodInfo:
    """A pod that is created now."""
    pod = cluster.pod(name, *profiles, created=rfc3339(cluster.date), **facts)
    cluster.settle()
    return pod


def evicted(cluster: SlicerCluster) -> list[str]:
    """Names of the pods that were asked to end, in order."""
    return [write.name for write in cluster.writes if isinstance(write, Evict)]


def test_it_is_off_by_default() -> None:
    cluster = SlicerCluster(reserve_after=60.0)
    cluster.pass_time(0)
    cluster.node("n1")
    running(cluster, "low", "7g.40gb")
    waiting(cluster, "high", "7g.40gb", priority=10)
    assert evicted(cluster) == []


def test_a_pod_of_higher_priority_gets_the_slots_and_both_are_told(cluster: SlicerCluster) -> None:
    cluster.node("n1")
    running(cluster, "low", "7g.40gb")
    high = waiting(cluster, "high", "7g.40gb", priority=10)
    assert evicted(cluster) == ["low"]
    assert cluster.where(high)
    told = {tell.reason: tell.message for tell in cluster.told}
    assert told["SlicePreempted"] == (
        "To be evicted, unless a PodDisruptionBudget keeps it: default/high of priority 10 needs its slices on node"
        " n1; this pod has priority 0"
    )


@pytest.mark.parametrize("facts", [{"priority": 0}, {"priority": 10, "preempts": False}], ids=["same", "never"])
def test_who_may_not_preempt_waits(cluster: SlicerCluster, facts: dict[str, Any]) -> None:
    cluster.node("n1")
    running(cluster, "low", "7g.40gb")
    waiting(cluster, "other", "7g.40gb", **facts)
    assert evicted(cluster) == []


def test_the_fewest_victims_are_taken_and_of_these_the_one_that_loses_least(cluster: SlicerCluster) -> None:
    cluster.node("n1", count=3)
    for name in ("a1", "a2"):
        running(cluster, name, "3g.20gb")
    running(cluster, "long", "7g.40gb")
    cluster.pass_time(1000)
    running(cluster, "short", "7g.40gb")
    high = waiting(cluster, "high", "7g.40gb", priority=10)
    assert evicted(cluster) == ["short"]
    assert cluster.where(high)


def test_a_pod_of_the_same_priority_on_the_card_saves_its_neighbours(cluster: SlicerCluster) -> None:
    cluster.node("n1")
    running(cluster, "low", "3g.20gb")
    running(cluster, "equal", "3g.20gb", priority=10)
    waiting(cluster, "high", "7g.40gb", priority=10)
    assert evicted(cluster) == []


def test_several_slices_take_no_superfluous_victim(cluster: SlicerCluster) -> None:
    cluster.node("n1", count=2)
    low = [running(cluster, f"low{number}", "3g.20gb") for number in range(4)]
    high = waiting(cluster, "high", "3g.20gb", "3g.20gb", priority=10)
    assert len(evicted(cluster)) == 2
    assert cluster.where(high)
    assert sum(pod.uid in cluster.pods for pod in low) == 2


def test_the_slots_of_victims_go_to_nobody_else(cluster: SlicerCluster) -> None:
    cluster.node("n1")
    first, second = (running(cluster, name, "3g.20gb") for name in ("first", "second"))
    cluster.protected.add(second.uid)
    high = waiting(cluster, "high", "7g.40gb", priority=10)
    young = waiting(cluster, "young", "3g.20gb")
    assert first.uid not in cluster.pods
    assert not cluster.where(high)
    assert not cluster.where(young)
    cluster.remove(second)
    cluster.settle()
    assert cluster.where(high)


def test_a_victim_that_a_budget_protects_is_left_alone_and_another_is_asked(cluster: SlicerCluster) -> None:
    cluster.node("n1", count=2)
    running(cluster, "old", "7g.40gb")
    cluster.pass_time(100)
    young = running(cluster, "young", "7g.40gb")
    cluster.protected.add(young.uid)
    high = waiting(cluster, "high", "7g.40gb", priority=10)
    assert evicted(cluster) == ["young"]
    cluster.settle()
    assert evicted(cluster) == ["young"], "not before a pause"
    cluster.wait(31)
    assert evicted(cluster) == ["young", "old"]
    assert cluster.where(high)


def test_a_pod_that_fits_evicts_nobody(cluster: SlicerCluster) -> None:
    cluster.node("n1", count=2)
    running(cluster, "low", "7g.40gb")
    high = waiting(cluster, "high", "7g.40gb", priority=10)
    assert cluster.where(high)
    assert evicted(cluster) == []


def test_a_node_without_cpu_for_the_pod_loses_nobody(cluster: SlicerCluster) -> None:
    cluster.node("n1", allocatable={"cpu": 8000, "pods": 110})
    running(cluster, "low", "7g.40gb")
    cluster.pod("plain", gates=(), node=NodeName("n1"), amounts={"cpu": 6000, "pods": 1})
    waiting(cluster, "high", "7g.40gb", priority=10, amounts={"cpu": 4000, "pods": 1})
    assert evicted(cluster) == []


@pytest.fixture
def polite() -> SlicerCluster:
    """Pods do not preempt; only those that keep room for others end."""
    made = SlicerCluster()
    made.pass_time(0)
    return made


def test_a_pod_that_keeps_room_ends_for_any_pod_of_higher_priority(polite: SlicerCluster) -> None:
    polite.node("n1")
    running(polite, "low", "3g.20gb", priority=-10)
    running(polite, "spare", "3g.20gb", priority=-10, yields=True)
    pod = waiting(polite, "pod", "3g.20gb")
    assert evicted(polite) == ["spare"]
    assert polite.where(pod)
    waiting(polite, "second", "3g.20gb")
    assert evicted(polite) == ["spare"]


def test_a_pod_that_keeps_room_does_not_end_for_its_like(polite: SlicerCluster) -> None:
    polite.node("n1")
    running(polite, "spare", "7g.40gb", yields=True)
    waiting(polite, "pod", "7g.40gb")
    assert evicted(polite) == []


def test_pods_that_keep_room_end_first(cluster: SlicerCluster) -> None:
    cluster.node("n1")
    spare = running(cluster, "spare", "3g.20gb", priority=-10, yields=True)
    running(cluster, "low", "3g.20gb", priority=-10)
    cluster.pass_time(600)
    pod = waiting(cluster, "pod", "3g.20gb")
    assert spare.uid not in cluster.pods
    assert cluster.where(pod)


def test_a_whole_card_that_is_kept_goes_to_a_pod(polite: SlicerCluster) -> None:
    polite.device_node("n1", count=1)
    spare = polite.whole("spare", priority=-10, yields=True, created=rfc3339(polite.date))
    polite.settle()
    polite.put(replace(polite.pods[spare.uid], node=NodeName("n1"), started=polite.date))
    pod = polite.whole("pod", created=rfc3339(polite.date))
    polite.settle()
    assert evicted(polite) == ["spare"]
    assert not polite.pods[pod.uid].gated
