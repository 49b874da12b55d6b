"""Slices of a pod without an owner that the scheduler refuses: taken back, told by event and condition, once."""

from dataclasses import replace
from typing import Any

import pytest
from tests.controller.slicing.test_agents import agent_pod
from tests.support.slicer_world import SlicerWorld

from tessera.api.names import NodeName
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.slicing.events import RefusalTimedOut
from tessera.controller.slicing.instructions import Evict, ReportPodCondition


def refused(world: SlicerWorld, **facts: Any) -> PodInfo:
    """A pod that is pinned to its slices, and that the scheduler refuses there."""
    world.node("n1")
    pod = world.pod("a", "7g.40gb", **facts)
    world.settle()
    pinned = world.pods[pod.uid]
    changed: PodInfo = world.put(
        replace(pinned, unschedulable_message="0/1 nodes are available", version=pinned.version + 1)
    )
    return changed


def withdraw(world: SlicerWorld, pod: PodInfo) -> None:
    world.slicer.decide()
    world.slicer.handle(RefusalTimedOut(pod.uid, 600.0))


def reports(world: SlicerWorld) -> list[bool]:
    """For each condition that was written whether it said that slices are there."""
    return [not write.text for write in world.writes if isinstance(write, ReportPodCondition)]


def test_a_withdrawn_pod_is_told_by_event_and_condition_once(world: SlicerWorld) -> None:
    pod = refused(world)
    withdraw(world, pod)
    world.settle()
    assert [tell.reason for tell in world.told] == ["SliceReclaimed"]
    assert reports(world) == [False]
    (report,) = [write for write in world.writes if isinstance(write, ReportPodCondition)]
    assert "0/1 nodes are available" in report.text
    for version in range(10, 20):  # the scheduler tries again and again
        world.put(replace(world.pods[pod.uid], unschedulable_message=f"refused {version}", version=version))
        world.settle()
    assert reports(world) == [False]
    assert world.empty()


def test_the_condition_is_true_again_once_the_pod_is_bound_and_promised_slices(world: SlicerWorld) -> None:
    pod = refused(world)
    withdraw(world, pod)
    world.settle()
    world.put(replace(world.pods[pod.uid], node=NodeName("n1"), unschedulable_message="", version=9))
    world.settle()
    assert reports(world) == [False, True]
    assert world.states(pod) == ("ungated", "created")


def test_a_pod_that_was_never_withdrawn_gets_no_condition(world: SlicerWorld) -> None:
    world.node("n1")
    pod = world.pod("a", "1g.5gb")
    world.settle()
    world.put(replace(world.pods[pod.uid], node=NodeName("n1"), version=9))
    world.settle()
    assert reports(world) == []


@pytest.mark.parametrize("answered", range(4))
def test_a_new_controller_goes_on_with_a_withdrawal(world: SlicerWorld, answered: int) -> None:
    """The old one dies after any number of the withdrawal's writes; the next pod gets the slices all the same."""
    pod = refused(world)
    withdraw(world, pod)
    left = answered
    while left:
        found = world.slicer.pop_writes()
        for instruction in found[:left]:
            world.answer(instruction)
        left -= min(left, len(found))
        if not found:
            break
        world.slicer.decide()
    world.restart()
    world.settle()
    if (
        world.slicer.state.allocations.current_of(pod.uid) is not None
    ):  # nothing was written: it is refused for a minute again
        withdraw(world, pod)
        world.settle()
    other = world.pod("b", "7g.40gb")
    world.settle()
    assert world.where(pod) == []
    assert world.states(other) == ("ungated", "created")
    assert reports(world) == [False]


def test_a_pod_that_is_bound_while_its_slices_are_taken_back_gets_them_again(world: SlicerWorld) -> None:
    pod = refused(world)
    withdraw(world, pod)
    instructions = world.slicer.pop_writes()
    world.put(replace(world.pods[pod.uid], node=NodeName("n1"), unschedulable_message="", version=9))
    for instruction in instructions:
        world.answer(instruction)
    world.settle()
    assert world.overlaps() == []
    assert world.states(pod) == ("ungated", "created")
    assert reports(world)[-1:] in ([], [True])


def test_a_bound_pod_whose_agent_dies_before_it_starts_is_evicted_and_its_node_is_not_avoided(
    world: SlicerWorld,
) -> None:
    pod = bound(world, owner="set")
    world.put(agent_pod("n1", ready=False))
    world.slicer.decide()
    assert world.slicer.state.refused_pods == {pod.uid}
    world.slicer.handle(RefusalTimedOut(pod.uid, 600.0))
    assert [each.uid for each in world.slicer.pop_writes() if isinstance(each, Evict)] == [pod.uid]
    assert not world.slicer.state.avoidance.nodes_of("set")


def test_a_bound_pod_without_an_owner_keeps_its_slices_and_is_told_until_its_agent_is_back(world: SlicerWorld) -> None:
    pod = bound(world)
    world.put(agent_pod("n1", ready=False))
    for _ in range(3):
        withdraw(world, pod)
        world.settle()
    assert [tell.reason for tell in world.told] == ["AgentNotReady"]
    assert reports(world) == [False]
    assert world.where(pod)
    world.put(agent_pod("n1"))
    world.settle()
    assert reports(world) == [False, True]
    assert world.states(pod) == ("ungated", "created")


def test_a_pod_that_has_started_stays_where_its_agent_died(world: SlicerWorld) -> None:
    pod = bound(world)
    world.put(replace(world.pods[pod.uid], unstarted=False, version=10))
    world.put(agent_pod("n1", ready=False))
    world.settle()
    assert world.slicer.state.refused_pods == set()


def bound(world: SlicerWorld, **facts: Any) -> PodInfo:
    """A pod that is bound to the node of its slices, and has not started."""
    world.node("n1")
    world.put(agent_pod("n1"))
    pod = world.pod("a", "7g.40gb", **facts)
    world.settle()
    changed: PodInfo = world.put(replace(world.pods[pod.uid], node=NodeName("n1"), unstarted=True, version=9))
    world.settle()
    return changed
