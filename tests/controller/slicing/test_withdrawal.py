"""Slices of a pod without an owner that the scheduler refuses: taken back, told by event and condition, once."""

from dataclasses import replace
from typing import Any

import pytest
from tests.controller.slicing.test_agents import agent_pod
from tests.support.slicer_cluster import SlicerCluster

from tessera.api.names import GATE, PLACEMENT_LABEL, PLACEMENT_MANAGED, NodeName, PodUid
from tessera.controller.cluster.filters import AVOIDANCE_SECONDS, NodeAvoidance
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.slicing.proposers.late_pods import BACKLOG, BOUND_WITHIN, LATE
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
    cluster.resume()
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
    assert cluster.slicer.state.pods.cannot_start == {pod.uid}
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
    assert cluster.slicer.state.pods.cannot_start == set()


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


def unbound(**facts: Any) -> tuple[SlicerCluster, PodInfo, PodInfo]:
    """Two whole cards: one is promised to a pod that is not bound, and the next pod waits for it."""
    cluster = SlicerCluster()
    cluster.node("n1")
    cluster.pass_time(0)
    pod = cluster.pod("a", "7g.40gb", **facts)
    other = cluster.pod("b", "7g.40gb")
    cluster.settle()
    assert cluster.where(pod)
    return cluster, pod, other


def wait(cluster: SlicerCluster, seconds: float) -> None:
    cluster.wait(seconds)


#: What keeps a pod from being bound: facts of the pod when it is created, facts once it is past Tessera's gate, and a
#: word of what it is told.
KEPT: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "a later gate": ({"gates": (KAI, GATE)}, {"gates": (KAI,)}, "kai.scheduler/queue-admission still holds"),
    "preemption": ({}, {"preempting": True}, "waits for pods of lower priority to end"),
}


@pytest.mark.parametrize("owner", ["", "o"])
@pytest.mark.parametrize("kept", KEPT)
def test_a_promise_that_does_not_start_within_minutes_goes_to_the_next_pod(kept: str, owner: str) -> None:
    """The pod is not evicted: its owner's next pod would be kept in the same way."""
    created, facts, word = KEPT[kept]
    cluster, pod, other = unbound(owner=owner, **created)
    change(cluster, pod, **facts)
    wait(cluster, BOUND_WITHIN - 1)
    assert cluster.where(pod)
    wait(cluster, 1)
    assert (cluster.where(pod), bool(cluster.where(other))) == ([], True)
    assert not any(isinstance(write, Evict) for write in cluster.writes)
    assert reports(cluster) == [False]
    (told,) = [each for each in cluster.told if each.reason == "SliceReclaimed"]
    assert word in told.message


def test_a_promise_that_starts_in_time_stays() -> None:
    cluster, pod, _ = unbound(gates=(KAI, GATE))
    change(cluster, pod, gates=(KAI,))
    change(cluster, pod, gates=(), node=NodeName("n1"))
    wait(cluster, 10 * BOUND_WITHIN)
    assert cluster.where(pod)


@pytest.mark.parametrize(
    ("bound_after", "stays"), [(None, True), (BACKLOG - 1, True), (BACKLOG, False)], ids=["none", "before", "after"]
)
def test_a_scheduler_that_says_nothing_keeps_a_promise_only_while_it_binds_nobody(
    bound_after: float | None, stays: bool
) -> None:
    """While no scheduler works, the next pod could not start either."""
    cluster, pod, _ = unbound()
    cluster.node("n2")
    cluster.settle()
    if bound_after is not None:
        wait(cluster, bound_after)
        change(cluster, cluster.pods[PodUid("uid-b")], node=NodeName("n2"))
    wait(cluster, BOUND_WITHIN)
    assert bool(cluster.where(pod)) is stays
    wait(cluster, 10 * BOUND_WITHIN)
    assert bool(cluster.where(pod)) is stays


def test_a_pod_of_an_owner_that_the_scheduler_refuses_after_its_slices_are_gone_is_made_anew() -> None:
    """Nobody else would end it: it is past the gate for good, and pinned."""
    cluster, pod, _ = unbound(owner="o")
    change(cluster, pod, preempting=True)
    wait(cluster, BOUND_WITHIN)
    change(cluster, pod, preempting=False, unschedulable_message="0/1 nodes are available")
    withdraw(cluster, cluster.pods[pod.uid])
    cluster.settle()
    assert pod.uid not in cluster.pods


# A pod that is bound after its slices went to others


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("owner", ["", "o"])
def test_a_pod_that_is_bound_after_its_slices_went_to_the_next_ends(owner: str, restarted: bool) -> None:
    """The scheduler counts it on the node, and would refuse the pod whose turn it is."""
    cluster, pod, other = unbound(owner=owner)
    change(cluster, pod, preempting=True)
    wait(cluster, BOUND_WITHIN)
    assert cluster.where(other)
    if restarted:
        cluster.resume()
    change(cluster, pod, preempting=False, node=NodeName("n1"), unstarted=True)
    assert pod.uid in cluster.pods, "slices of a pod that has just ended may come free"
    wait(cluster, LATE)
    assert pod.uid not in cluster.pods
    assert cluster.where(other)
    assert "after its slices went to the next pod" in cluster.told[-1].message


def test_a_pod_that_is_bound_late_gets_slices_only_in_its_turn(cluster: SlicerCluster) -> None:
    """An older pod waits for the same room: it gets it, and the late one ends."""
    cluster, pod, other = unbound()
    change(cluster, pod, preempting=True)
    wait(cluster, BOUND_WITHIN)
    change(cluster, other, node=NodeName("n1"))
    first = cluster.pod("c", "7g.40gb", priority=1)
    cluster.settle()
    cluster.remove(other)
    cluster.put(replace(cluster.pods[pod.uid], node=NodeName("n1"), unstarted=True, version=99))
    cluster.settle()
    wait(cluster, LATE)
    assert cluster.where(first)
    assert pod.uid not in cluster.pods


def test_a_pod_that_is_bound_late_gets_the_slices_that_are_free() -> None:
    cluster, pod, other = unbound()
    change(cluster, pod, preempting=True)
    wait(cluster, BOUND_WITHIN)
    cluster.remove(other)
    cluster.settle()
    change(cluster, pod, preempting=False, node=NodeName("n1"), unstarted=True)
    wait(cluster, 2 * LATE)
    assert cluster.states(pod) == ("ungated", "created")
    assert reports(cluster) == [False, True]


def test_a_pod_that_is_bound_late_and_whose_agent_is_down_waits_for_it() -> None:
    cluster, pod, other = unbound()
    cluster.put(agent_pod("n1"))
    change(cluster, pod, preempting=True)
    wait(cluster, BOUND_WITHIN)
    cluster.remove(other)
    cluster.settle()
    cluster.put(agent_pod("n1", ready=False))
    change(cluster, pod, preempting=False, node=NodeName("n1"), unstarted=True)
    wait(cluster, 3 * LATE)
    assert pod.uid in cluster.pods


def test_a_pod_that_takes_a_whole_card_promised_to_the_next_ends() -> None:
    cluster = SlicerCluster()
    cluster.namespace("default", **{PLACEMENT_LABEL: PLACEMENT_MANAGED})
    cluster.device_node("n1", count=1)
    cluster.pass_time(0)
    pod, other = cluster.whole("a"), cluster.whole("b")
    cluster.settle()
    change(cluster, pod, preempting=True)
    wait(cluster, BOUND_WITHIN)
    assert not cluster.pods[other.uid].gated
    change(cluster, pod, preempting=False, node=NodeName("n1"))
    assert pod.uid not in cluster.pods
    assert other.uid in cluster.pods


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
    cluster.settle_and_wait(60)
    young = cluster.pod("young", "3g.20gb", deadline=deadline)
    cluster.settle()
    assert cluster.slicer.state.pods.cannot_start == ({young.uid} if deadline else set())
    if deadline:
        change(cluster, young, node=NodeName("n1"), started=cluster.date)
        assert cluster.slicer.state.pods.cannot_start == set()


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
            cluster.wait(10)
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
