"""Slices of a pod without an owner that the scheduler refuses: taken back, told by event and condition, once."""

from dataclasses import replace
from typing import Any

import pytest
from tests.controller.slicing.test_agents import agent_pod
from tests.support.slicer_cluster import SlicerCluster

from tessera.api.names import GATE, NodeName
from tessera.controller.filters.avoidance import AVOIDANCE_SECONDS, NodeAvoidance
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.slicing.state.events import LastGatesObserved, RefusalTimedOut
from tessera.controller.slicing.state.instructions import Evict, ReportPodCondition


def refused(cluster: SlicerCluster, **facts: Any) -> PodInfo:
    """A pod that is pinned to its slices, and that the scheduler refuses there."""
    cluster.node("n1")
    pod = cluster.pod("a", "7g.40gb", **facts)
    cluster.settle()
    pinned = cluster.pods[pod.uid]
    changed: PodInfo = cluster.put(
        replace(pinned, unschedulable_message="0/1 nodes are available", version=pinned.version + 1)
    )
    return changed


def withdraw(cluster: SlicerCluster, pod: PodInfo) -> None:
    cluster.slicer.decide()
    cluster.slicer.handle(RefusalTimedOut(pod.uid, 600.0))


def reports(cluster: SlicerCluster) -> list[bool]:
    """For each condition that was written whether it said that slices are there."""
    return [not write.text for write in cluster.writes if isinstance(write, ReportPodCondition)]


def test_a_withdrawn_pod_is_told_by_event_and_condition_once(cluster: SlicerCluster) -> None:
    pod = refused(cluster)
    withdraw(cluster, pod)
    cluster.settle()
    assert [tell.reason for tell in cluster.told] == ["SliceReclaimed"]
    assert reports(cluster) == [False]
    (report,) = [write for write in cluster.writes if isinstance(write, ReportPodCondition)]
    assert "0/1 nodes are available" in report.text
    for version in range(10, 20):  # the scheduler tries again and again
        cluster.put(replace(cluster.pods[pod.uid], unschedulable_message=f"refused {version}", version=version))
        cluster.settle()
    assert reports(cluster) == [False]
    assert cluster.empty()


def test_the_condition_is_true_again_once_the_pod_is_bound_and_promised_slices(cluster: SlicerCluster) -> None:
    pod = refused(cluster)
    withdraw(cluster, pod)
    cluster.settle()
    cluster.put(replace(cluster.pods[pod.uid], node=NodeName("n1"), unschedulable_message="", version=9))
    cluster.settle()
    assert reports(cluster) == [False, True]
    assert cluster.states(pod) == ("ungated", "created")


def test_a_pod_that_was_never_withdrawn_gets_no_condition(cluster: SlicerCluster) -> None:
    cluster.node("n1")
    pod = cluster.pod("a", "1g.5gb")
    cluster.settle()
    cluster.put(replace(cluster.pods[pod.uid], node=NodeName("n1"), version=9))
    cluster.settle()
    assert reports(cluster) == []


@pytest.mark.parametrize("answered", range(4))
def test_a_new_controller_goes_on_with_a_withdrawal(cluster: SlicerCluster, answered: int) -> None:
    """The old one dies after any number of the withdrawal's writes; the next pod gets the slices all the same."""
    pod = refused(cluster)
    withdraw(cluster, pod)
    left = answered
    while left:
        found = cluster.slicer.pop_writes()
        for instruction in found[:left]:
            cluster.answer(instruction)
        left -= min(left, len(found))
        if not found:
            break
        cluster.slicer.decide()
    cluster.restart()
    cluster.settle()
    if (
        cluster.slicer.state.allocations.current_of(pod.uid) is not None
    ):  # nothing was written: it is refused for a minute again
        withdraw(cluster, pod)
        cluster.settle()
    other = cluster.pod("b", "7g.40gb")
    cluster.settle()
    assert cluster.where(pod) == []
    assert cluster.states(other) == ("ungated", "created")
    assert reports(cluster) == [False]


def test_a_pod_that_is_bound_while_its_slices_are_taken_back_gets_them_again(cluster: SlicerCluster) -> None:
    pod = refused(cluster)
    withdraw(cluster, pod)
    instructions = cluster.slicer.pop_writes()
    cluster.put(replace(cluster.pods[pod.uid], node=NodeName("n1"), unschedulable_message="", version=9))
    for instruction in instructions:
        cluster.answer(instruction)
    cluster.settle()
    assert cluster.overlaps() == []
    assert cluster.states(pod) == ("ungated", "created")
    assert reports(cluster)[-1:] in ([], [True])


def test_a_bound_pod_whose_agent_dies_before_it_starts_is_evicted_and_its_node_is_not_avoided(
    cluster: SlicerCluster,
) -> None:
    pod = bound(cluster, owner="set")
    cluster.put(agent_pod("n1", ready=False))
    cluster.slicer.decide()
    assert cluster.slicer.state.refused_pods == {pod.uid}
    cluster.slicer.handle(RefusalTimedOut(pod.uid, 600.0))
    assert [each.uid for each in cluster.slicer.pop_writes() if isinstance(each, Evict)] == [pod.uid]
    assert not cluster.slicer.state.avoidance.nodes_of("set")


def test_a_bound_pod_without_an_owner_keeps_its_slices_and_is_told_until_its_agent_is_back(
    cluster: SlicerCluster,
) -> None:
    pod = bound(cluster)
    cluster.put(agent_pod("n1", ready=False))
    for _ in range(3):
        withdraw(cluster, pod)
        cluster.settle()
    assert [tell.reason for tell in cluster.told] == ["AgentNotReady"]
    assert reports(cluster) == [False]
    assert cluster.where(pod)
    cluster.put(agent_pod("n1"))
    cluster.settle()
    assert reports(cluster) == [False, True]
    assert cluster.states(pod) == ("ungated", "created")


def test_a_pod_that_has_started_stays_where_its_agent_died(cluster: SlicerCluster) -> None:
    pod = bound(cluster)
    cluster.put(replace(cluster.pods[pod.uid], unstarted=False, version=10))
    cluster.put(agent_pod("n1", ready=False))
    cluster.settle()
    assert cluster.slicer.state.refused_pods == set()


def bound(cluster: SlicerCluster, **facts: Any) -> PodInfo:
    """A pod that is bound to the node of its slices, and has not started."""
    cluster.node("n1")
    cluster.put(agent_pod("n1"))
    pod = cluster.pod("a", "7g.40gb", **facts)
    cluster.settle()
    changed: PodInfo = cluster.put(replace(cluster.pods[pod.uid], node=NodeName("n1"), unstarted=True, version=9))
    cluster.settle()
    return changed


#: The gate of KAI, which goes after Tessera's.
KAI = "kai.scheduler/queue-admission"


def test_a_pod_that_a_later_gate_holds_loses_its_slices_and_is_not_evicted(cluster: SlicerCluster) -> None:
    """Its owner's next pod would be held too."""
    cluster.node("n1")
    pod = cluster.pod("a", "7g.40gb", gates=(KAI, GATE), owner="o")
    other = cluster.pod("b", "7g.40gb")
    cluster.settle()
    change(cluster, pod, gates=(KAI,))
    assert cluster.slicer.state.held_pods == {pod.uid}
    assert cluster.slicer.state.refused_pods == set()
    withdraw(cluster, pod)
    cluster.settle()
    assert not any(isinstance(write, Evict) for write in cluster.writes)
    assert (cluster.where(pod), bool(cluster.where(other))) == ([], True)
    assert cluster.slicer.state.held_pods == set()
    assert reports(cluster) == [False]


def test_a_later_gate_that_is_removed_in_time_costs_the_pod_nothing(cluster: SlicerCluster) -> None:
    cluster.node("n1")
    pod = cluster.pod("a", "7g.40gb", gates=(KAI, GATE))
    cluster.settle()
    change(cluster, pod, gates=(KAI,))
    change(cluster, pod, gates=())
    assert cluster.slicer.state.held_pods == set()
    withdraw(cluster, pod)
    cluster.settle()
    assert cluster.where(pod)


def test_a_gate_counts_as_a_later_one_only_while_its_owner_exists(cluster: SlicerCluster) -> None:
    cluster.node("n1")
    cluster.slicer.handle(LastGatesObserved(frozenset()))
    pod = cluster.pod("a", "7g.40gb", gates=(KAI, GATE))
    cluster.settle()
    assert cluster.where(pod) == []
    cluster.slicer.handle(LastGatesObserved(frozenset({KAI})))
    cluster.settle()
    assert cluster.where(pod)


@pytest.mark.parametrize("deadline", [60.0, None])
def test_a_pod_on_slots_that_it_must_leave_in_time_counts_as_refused_until_it_is_bound(deadline: float | None) -> None:
    """Its deadline has not begun, whatever keeps the scheduler from it: a volume, a scheduler of its own."""
    cluster = SlicerCluster(reserve_after=60.0)
    cluster.node("n1")
    cluster.pass_time(0)
    old = cluster.pod("old", "3g.20gb", deadline=3_000.0)
    cluster.settle()
    change(cluster, old, node=NodeName("n1"), started=cluster.date)
    cluster.pod("victim", "7g.40gb")
    cluster.settle()
    cluster.pass_time(60)
    cluster.settle()
    young = cluster.pod("young", "3g.20gb", deadline=deadline)
    cluster.settle()
    assert cluster.slicer.state.refused_pods == ({young.uid} if deadline else set())
    if deadline:
        change(cluster, young, node=NodeName("n1"), started=cluster.date)
        assert cluster.slicer.state.refused_pods == set()


def change(cluster: SlicerCluster, pod: PodInfo, **facts: Any) -> None:
    cluster.put(replace(cluster.pods[pod.uid], version=cluster.pods[pod.uid].version + 1, **facts))
    cluster.settle()


def test_an_owner_whose_pods_are_refused_again_and_again_pauses_for_longer_each_time() -> None:
    """Else each of its pods would hold slices for a minute, on one node after the other, and be evicted."""
    cluster = SlicerCluster()
    for number in range(8):
        cluster.node(f"n{number}")
    cluster.pass_time(0)
    gaps: list[float] = []
    for number in range(6):
        pod = cluster.pod(f"a{number}", "7g.40gb", owner="set")
        began = cluster.date
        cluster.settle()
        while not cluster.where(pod):
            cluster.pass_time(10)
            cluster.settle()
        gaps.append(cluster.date - began)
        cluster.pass_time(60)
        change(cluster, pod, unschedulable_message="0/8 nodes are available")
        cluster.slicer.decide()
        cluster.slicer.handle(RefusalTimedOut(pod.uid, cluster.date + AVOIDANCE_SECONDS))
        cluster.settle()
        assert pod.uid not in cluster.pods
    assert gaps == [0, 0, 0, 60, 120, 240]
    other = cluster.pod("other", "7g.40gb", owner="another")
    cluster.settle()
    assert cluster.where(other)


def test_refusals_of_pods_that_were_placed_together_count_once() -> None:
    avoidance = NodeAvoidance()
    for number in range(100):
        avoidance.add("set", NodeName(f"n{number}"), AVOIDANCE_SECONDS + number / 10)
    assert not avoidance.pauses("set")
