"""Writes that are under way, refused or late, and records that contradict each other: nobody loses what runs."""

from dataclasses import replace

from tests.support.slicer_world import SlicerWorld

from tessera.api.names import GATE, NodeName
from tessera.controller.slicing.events import InstasliceDeleted, NodeObserved, PodObserved, RetryDue, WriteRefused
from tessera.controller.slicing.instructions import PatchRequests, Ungate


def record(world: SlicerWorld, node: str, uid: str, like: str) -> None:
    """A second record on a node, for the very slots of another pod's."""
    stored = world.objects[node]
    request = {**stored["spec"]["podAllocationRequests"][like]}
    request["podRef"] = {**request["podRef"], "uid": uid, "name": uid.removeprefix("uid-")}
    result = stored["status"]["podAllocationResults"][like]
    world.patch(node, {"spec": {"podAllocationRequests": {uid: request}}})
    world.patch(node, {"status": {"podAllocationResults": {uid: result}}})


def test_one_write_of_a_kind_is_under_way_for_a_node(world: SlicerWorld) -> None:
    world.node("n1")
    world.pod("a", "1g.5gb")
    world.slicer.decide()
    (first,) = world.slicer.pop_writes()
    world.pod("b", "1g.5gb")
    world.slicer.decide()
    assert list(world.slicer.pop_writes()) == []
    world.answer(first)
    (second, *_) = world.run()
    assert set(second.put) == {"uid-b"}


def test_slots_of_a_request_that_is_under_way_are_nobody_elses(world: SlicerWorld) -> None:
    world.node("n1")
    pod = world.pod("a", "7g.40gb")
    world.slicer.decide()
    (write,) = world.slicer.pop_writes()
    world.remove(pod)
    other = world.pod("b", "7g.40gb")
    world.run()
    assert set(world.slicer.state.waiting) == {other.uid}
    world.answer(write)
    world.settle()
    assert world.states(other) == ("ungated", "created")


def test_a_request_that_was_refused_leaves_nothing_to_clean_up(world: SlicerWorld) -> None:
    world.node("n1")
    pod = world.pod("a", "7g.40gb")
    world.slicer.decide()
    (write,) = world.slicer.pop_writes()
    world.slicer.handle(WriteRefused(write))
    world.remove(pod)
    world.slicer.handle(RetryDue(write))
    assert world.run() == []
    other = world.pod("b", "7g.40gb")
    world.settle()
    assert world.states(other) == ("ungated", "created")


def test_a_cordon_while_the_ungating_is_under_way_takes_nothing_from_the_pod(world: SlicerWorld) -> None:
    node = world.node("n1")
    pod = world.pod("a", "1g.5gb")
    ungate = None
    while ungate is None:
        world.slicer.decide()
        for one in world.slicer.pop_writes():
            if isinstance(one, Ungate):
                ungate = one
            else:
                world.answer(one)
    world.slicer.handle(NodeObserved(replace(node, cordoned=True)))
    assert world.run() == []
    world.answer(ungate)
    world.settle()
    assert world.states(pod) == ("ungated", "created")


def test_an_older_state_of_a_pod_is_ignored(world: SlicerWorld) -> None:
    world.node("n1")
    old = world.pod("a", "1g.5gb", version=4)
    world.settle()
    world.put(replace(world.pods[old.uid], version=6))
    world.slicer.handle(PodObserved(old))
    assert world.run() == []


def test_an_object_deleted_before_the_gate_opens_sends_the_pod_elsewhere(world: SlicerWorld) -> None:
    world.node("n1")
    pod = world.pod("a", "1g.5gb")
    world.slicer.decide()
    (request,) = world.slicer.pop_writes()
    world.answer(request)
    del world.objects["n1"]
    world.slicer.handle(InstasliceDeleted(NodeName("n1")))
    world.node("n2")
    world.settle()
    assert [node for node, _, _ in world.where(pod)] == ["n2"]


def test_of_two_records_for_the_same_slots_the_pod_that_runs_keeps_them(world: SlicerWorld) -> None:
    world.node("n1", count=2)
    waits = world.pod("a", "7g.40gb")
    world.settle()
    runs = world.pod("b", "7g.40gb", gates=(), node="n1")
    record(world, "n1", runs.uid, like=waits.uid)
    world.pods[waits.uid] = replace(waits, gates=(GATE,))
    first = world.read("n1").spec.pod_allocation_requests[runs.uid].slices
    world.restart()
    world.settle()
    assert world.read("n1").spec.pod_allocation_requests[runs.uid].slices == first
    assert world.overlaps() == []
    assert world.states(waits) == world.states(runs) == ("ungated", "created")


def test_of_two_promises_to_a_pod_the_one_where_it_runs_is_kept_and_not_touched(world: SlicerWorld) -> None:
    world.node("n2")
    pod = world.pod("a", "3g.20gb")
    world.settle()
    world.node("n1")
    stored = world.objects["n2"]
    world.patch("n1", {"spec": stored["spec"]})
    world.patch("n1", {"status": {"podAllocationResults": stored["status"]["podAllocationResults"]}})
    world.pods[pod.uid] = replace(world.pods[pod.uid], node=NodeName("n2"))
    world.restart()
    assert {write.node for write in world.run()} == {"n1"}
    world.settle()
    assert [node for node, _, _ in world.where(pod)] == ["n2"]


def test_the_record_of_a_pod_that_runs_already_costs_one_write(world: SlicerWorld) -> None:
    world.node("n1")
    pod = world.pod("a", "3g.20gb", gates=(), node="n1")
    assert [type(write) for write in world.run()] == [PatchRequests]
    world.agents()
    assert world.states(pod) == ("ungated", "created")
