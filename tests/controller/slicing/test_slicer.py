"""The slicer, driven by plain values."""

from dataclasses import replace

import pytest
from tests.support.slicer_world import SlicerWorld

from tessera.api.names import NodeName, PodUid
from tessera.controller.slicing.events import (
    InstasliceDeleted,
    InstasliceObserved,
    NodeDeleted,
    NodeObserved,
    RetryDue,
    UngateDenied,
    WriteOutcomeUnknown,
    WriteRefused,
)
from tessera.controller.slicing.instructions import PatchRequests, PatchResults, Ungate


def test_a_pod_is_promised_and_ungated_in_two_writes(world: SlicerWorld) -> None:
    world.node("n1")
    pod = world.pod("a", "3g.20gb")
    writes = world.run()
    assert [type(write) for write in writes] == [PatchRequests, Ungate]
    assert world.states(pod) is None
    world.agents()
    assert world.run() == []
    assert world.states(pod) == ("ungated", "created")
    assert world.pods[pod.uid].hostname == "n1"


def test_nothing_is_written_for_a_pod_that_finds_no_place(world: SlicerWorld) -> None:
    world.pod("a", "3g.20gb")
    assert world.run() == []
    assert [tell.reason for tell in world.told] == ["SliceWaiting"]


def test_seven_small_pods_sit_on_one_card_and_share_their_writes(world: SlicerWorld) -> None:
    world.node("n1", count=4)
    pods = [world.pod(f"p{i}", "1g.5gb") for i in range(7)]
    writes = world.run()
    assert len(writes) == 1 + 7
    assert (
        len(
            {
                gpu
                for pod in pods
                for gpu in (world.read("n1").spec.pod_allocation_requests[pod.uid].slices[0].gpu_uuid,)
            }
        )
        == 1
    )
    assert world.overlaps() == []


def test_the_one_too_many_waits_and_gets_the_slot_that_comes_free(world: SlicerWorld) -> None:
    world.node("n1", count=4)
    pods = [world.pod(f"p{i:02}", "1g.5gb") for i in range(28)]
    world.settle()
    late = world.pod("late", "1g.5gb")
    assert world.run() == []
    assert [(tell.name, tell.reason) for tell in world.told] == [("late", "SliceWaiting")]
    freed = world.where(pods[5])
    world.remove(pods[5])
    (write,) = world.run()
    assert isinstance(write, PatchRequests), "the one write that the end of a pod costs the controller"
    assert write.drop == (pods[5].uid,)
    assert world.states(pods[5]) == ("ungated", "created"), "its slice is not destroyed yet"
    assert world.where(late) == []
    world.agents()
    world.slicer.decide()
    assert world.slicer.state.allocations.current_of(late.uid) is not None, (
        "the slot is offered in the event that frees it"
    )
    world.settle()
    assert world.where(late) == freed
    assert world.states(late) == ("ungated", "created")


def test_a_deleted_pod_leaves_nothing(world: SlicerWorld) -> None:
    world.node("n1")
    pod = world.pod("a", "3g.20gb")
    world.settle()
    world.remove(pod)
    world.settle()
    assert world.empty()
    assert len(world.slicer.state.allocations) == 0
    assert all(card.occupancy == 0 for card in world.slicer.state.inventory.fleet.cards())


def test_a_finished_pod_gives_its_slice_back_while_its_object_stays(world: SlicerWorld) -> None:
    world.node("n1")
    pod = world.pod("a", "3g.20gb")
    world.settle()
    world.put(replace(world.pods[pod.uid], node=NodeName("n1"), finished=True))
    world.settle()
    assert world.empty()


def test_a_pod_deleted_before_its_promise_was_written_costs_no_write(world: SlicerWorld) -> None:
    world.node("n1")
    pod = world.pod("a", "7g.40gb")
    world.slicer.decide()
    world.remove(pod)
    assert world.run() == []
    other = world.pod("b", "7g.40gb")
    world.settle()
    assert world.states(other) == ("ungated", "created")


def test_a_pod_deleted_while_its_promise_is_in_flight_keeps_the_slots_until_the_agent_answers(
    world: SlicerWorld,
) -> None:
    world.node("n1")
    pod = world.pod("a", "7g.40gb")
    world.slicer.decide()
    (write,) = world.slicer.pop_writes()
    world.remove(pod)
    other = world.pod("b", "7g.40gb")
    world.run()
    assert world.where(other) == [], "the request may still arrive at the server"
    world.answer(write)
    world.settle()
    assert world.where(pod) == []
    assert world.states(other) == ("ungated", "created")


@pytest.mark.parametrize("writes", range(5))
def test_a_new_process_goes_on_after_any_write(world: SlicerWorld, writes: int) -> None:
    world.node("n1")
    pod = world.pod("a", "2g.10gb", "3g.20gb")
    left = writes
    while left:
        world.slicer.decide()
        for instruction in world.slicer.pop_writes():
            if left:
                world.answer(instruction)
                left -= 1
        if not world.slicer.has_work:
            break
    before = world.where(pod)
    world.restart()
    world.settle()
    assert world.states(pod) == ("ungated", "created")
    assert not before or world.where(pod) == before
    world.remove(pod)
    world.settle()
    assert world.empty()


def test_entries_of_pods_that_no_longer_exist_are_released_at_start(world: SlicerWorld) -> None:
    world.node("n1")
    pod = world.pod("a", "3g.20gb")
    world.settle()
    del world.pods[pod.uid]
    world.restart()
    world.settle()
    assert world.empty()


def test_another_operators_gate_goes_first(world: SlicerWorld) -> None:
    world.node("n1")
    pod = world.pod("a", "1g.5gb", gates=("kueue.x-k8s.io/admission", "instaslice.redhat.com/accelerator"))
    assert world.run() == []
    world.put(replace(pod, gates=("instaslice.redhat.com/accelerator",)))
    world.settle()
    assert world.states(pod) == ("ungated", "created")


def test_a_cordon_before_the_gate_opens_moves_the_promise_elsewhere(world: SlicerWorld) -> None:
    first = world.node("n1")
    pod = world.pod("a", "1g.5gb")
    world.slicer.decide()
    (request,) = world.slicer.pop_writes()
    world.answer(request)
    world.slicer.handle(NodeObserved(replace(first, cordoned=True)))
    world.node("n2")
    world.settle()
    assert [place[0] for place in world.where(pod)] == ["n2"]
    assert world.states(pod) == ("ungated", "created")


def until_ungating(world: SlicerWorld) -> Ungate:
    """Decides and writes until a pod is to be ungated, and stops there."""
    while True:
        world.slicer.decide()
        found = world.slicer.pop_writes()
        for one in found:
            if isinstance(one, Ungate):
                return one
            world.answer(one)


def test_a_cordon_while_the_ungating_could_not_be_sent_moves_the_promise_elsewhere(world: SlicerWorld) -> None:
    first = world.node("n1")
    pod = world.pod("a", "1g.5gb")
    ungate = until_ungating(world)
    world.slicer.handle(WriteRefused(ungate))
    world.slicer.handle(NodeObserved(replace(first, cordoned=True)))
    world.node("n2")
    world.run()
    world.slicer.handle(RetryDue(ungate))
    world.run()
    assert world.pods[pod.uid].hostname != "n1"
    world.settle()
    assert [place[0] for place in world.where(pod)] == ["n2"]


def test_a_node_that_vanishes_while_the_ungating_could_not_be_sent_moves_the_promise_elsewhere(
    world: SlicerWorld,
) -> None:
    world.node("n1")
    pod = world.pod("a", "1g.5gb")
    ungate = until_ungating(world)
    world.slicer.handle(WriteOutcomeUnknown(ungate))
    del world.nodes["n1"]
    world.slicer.handle(NodeDeleted(NodeName("n1")))
    world.node("n2")
    world.slicer.decide()
    world.slicer.handle(RetryDue(ungate))
    world.run()
    assert [place[0] for place in world.where(pod)] == ["n2"]


def test_a_pod_that_is_to_be_deleted_and_never_ran_keeps_nothing_however_long_a_finalizer_keeps_it(
    world: SlicerWorld,
) -> None:
    world.node("n1")
    pod = world.pod("a", "7g.40gb")
    world.settle()
    world.put(replace(world.pods[pod.uid], terminating=True))
    world.settle()
    assert world.empty()
    assert world.run() == []
    other = world.pod("b", "7g.40gb")
    world.settle()
    assert world.states(other) == ("ungated", "created")


def test_a_pod_that_is_to_be_deleted_keeps_its_slices_while_it_runs(world: SlicerWorld) -> None:
    world.node("n1")
    pod = world.pod("a", "7g.40gb")
    world.settle()
    world.put(replace(world.pods[pod.uid], terminating=True, node=NodeName("n1")))
    world.settle()
    assert world.states(pod) == ("ungated", "created")


def test_a_cordon_after_the_gate_opened_changes_nothing(world: SlicerWorld) -> None:
    first = world.node("n1")
    pod = world.pod("a", "1g.5gb")
    world.settle()
    world.slicer.handle(NodeObserved(replace(first, cordoned=True)))
    assert world.run() == []
    assert world.states(pod) == ("ungated", "created")


def test_foreign_slices_are_in_the_way(world: SlicerWorld) -> None:
    world.node("n1")
    foreign = [{"gpuUUID": "GPU-n1-0", "start": 0, "size": 4, "profile": "3g.20gb"}]
    world.patch("n1", {"status": {"nodeResources": {"foreign": foreign}}})
    pods = [world.pod("a", "3g.20gb"), world.pod("b", "3g.20gb")]
    world.settle()
    assert [world.where(pod) for pod in pods] == [[("n1", "3g.20gb", 4)], []]
    world.patch("n1", {"status": {"nodeResources": {"foreign": []}}})
    world.settle()
    assert world.where(pods[1]) == [("n1", "3g.20gb", 0)]


def test_a_node_without_the_label_gets_no_promises(world: SlicerWorld) -> None:
    node = world.node("n1", labels={"kubernetes.io/hostname": "n1"})
    pod = world.pod("a", "1g.5gb")
    assert world.run() == []
    world.slicer.handle(NodeObserved(replace(node, labels={**node.labels, "nvidia.com/mig.config": "dynamic"})))
    world.settle()
    assert world.states(pod) == ("ungated", "created")


def test_cpu_of_the_whole_batch_is_counted(world: SlicerWorld) -> None:
    world.node("n1", count=4, allocatable={"cpu": 3000, "pods": 110})
    pods = [world.pod(f"p{i}", "1g.5gb", amounts={"cpu": 2000, "pods": 1}) for i in range(2)]
    world.settle()
    assert [bool(world.where(pod)) for pod in pods] == [True, False]
    assert "Insufficient cpu" in world.told[0].message


def test_a_pod_that_ends_makes_room_for_one_that_waits_for_cpu(world: SlicerWorld) -> None:
    world.node("n1", allocatable={"cpu": 3000, "pods": 110})
    other = world.pod("plain", gates=(), node="n1", amounts={"cpu": 2500, "pods": 1})
    pod = world.pod("a", "1g.5gb")
    world.settle()
    assert world.where(pod) == []
    world.remove(other)
    world.settle()
    assert world.states(pod) == ("ungated", "created")


def test_higher_priority_goes_first(world: SlicerWorld) -> None:
    world.node("n1")
    low = world.pod("low", "7g.40gb")
    high = world.pod("high", "7g.40gb", priority=10)
    world.settle()
    assert world.where(high)
    assert not world.where(low)


def test_a_name_used_again_is_another_pod(world: SlicerWorld) -> None:
    world.node("n1")
    old = world.pod("web-0", "7g.40gb")
    world.settle()
    del world.pods[old.uid]
    new = world.put(replace(old, uid=PodUid("uid-second"), gates=("instaslice.redhat.com/accelerator",)))
    world.settle()
    assert world.states(new) == ("ungated", "created")
    assert world.where(old) == []


def test_a_deleted_object_is_filled_again_for_the_pods_that_run(world: SlicerWorld) -> None:
    world.node("n1")
    running, gone = world.pod("a", "3g.20gb"), world.pod("b", "2g.10gb")
    world.settle()
    before = world.where(running)
    saved = world.objects.pop("n1")
    world.slicer.handle(InstasliceDeleted(NodeName("n1")))
    world.remove(gone)
    world.run()
    world.objects["n1"] = {
        "metadata": dict(saved["metadata"]),
        "status": {"nodeResources": saved["status"]["nodeResources"]},
    }
    world.patch("n1", {})
    world.settle()
    assert world.where(running) == before
    assert world.states(running) == ("ungated", "created")
    assert world.where(gone) == []


def test_a_running_pod_without_a_record_gets_one_after_a_restart(world: SlicerWorld) -> None:
    world.node("n1")
    world.node("n2")
    pod = world.pod("a", "3g.20gb", gates=(), node="n2")
    world.settle()
    assert [place[0] for place in world.where(pod)] == ["n2"]
    assert world.states(pod) == ("ungated", "created")


def test_a_running_pod_without_a_record_and_without_room_is_told(world: SlicerWorld) -> None:
    world.node("n1")
    world.pod("a", "7g.40gb")
    world.settle()
    world.pod("b", "1g.5gb", gates=(), node="n1")
    world.settle()
    assert [(tell.name, tell.reason, tell.warning) for tell in world.told] == [("b", "SliceLost", True)]


def test_the_object_of_a_node_that_left_is_removed(world: SlicerWorld) -> None:
    world.node("n1")
    pod = world.pod("a", "1g.5gb")
    world.settle()
    world.remove(pod)
    del world.nodes["n1"]
    world.slicer.handle(NodeDeleted(NodeName("n1")))
    world.run()
    assert world.objects == {}
    assert len(world.slicer.state.allocations) == 0


def test_an_observation_older_than_the_last_answer_is_ignored(world: SlicerWorld) -> None:
    world.node("n1")
    stale = world.read("n1")
    pod = world.pod("a", "1g.5gb")
    world.settle()
    world.slicer.handle(InstasliceObserved(stale))
    assert world.run() == []
    assert world.states(pod) == ("ungated", "created")


def test_a_refused_ungating_is_told_and_the_slice_given_back(world: SlicerWorld) -> None:
    world.node("n1")
    pod = world.pod("a", "1g.5gb")
    world.slicer.handle(UngateDenied(until_ungating(world), "admission webhook says no"))
    world.settle()
    assert world.empty()
    assert world.told[-1].reason == "SliceRefused"
    world.put(replace(pod, priority=1))
    world.settle()
    assert world.states(pod) == ("ungated", "created")


def test_the_same_reason_is_told_once(world: SlicerWorld) -> None:
    world.node("n1")
    first = world.pod("a", "7g.40gb")
    world.pod("b", "7g.40gb")
    world.settle()
    world.node("n2", count=0)
    world.settle()
    assert len(world.told) == 1
    assert first.key in world.told[0].message


def test_an_agent_of_an_earlier_version_leaves_the_result_to_the_controller(world: SlicerWorld) -> None:
    world.node("n1")
    pod = world.pod("a", "3g.20gb")
    world.settle()
    world.remove(pod)
    world.run()
    deleted = {"allocationStatus": {"allocationStatusDaemonset": "deleted"}}
    world.patch("n1", {"status": {"podAllocationResults": {pod.uid: deleted}}})
    world.run()
    assert world.empty()


def test_an_agent_of_an_earlier_version_writes_no_result_and_its_slots_come_free(world: SlicerWorld) -> None:
    world.node("n1")
    pod = world.pod("a", "7g.40gb")
    world.run()
    world.remove(pod)
    world.run()
    assert world.empty()
    late = world.pod("late", "7g.40gb")
    world.run()
    assert world.where(late)


def test_a_promise_of_which_nobody_knows_whether_it_was_written_is_removed_with_its_pod(world: SlicerWorld) -> None:
    world.node("n1")
    pod = world.pod("a", "3g.20gb")
    world.slicer.decide()
    (put,) = world.slicer.pop_writes()
    world.slicer.handle(WriteOutcomeUnknown(put))
    world.remove(pod)
    world.slicer.handle(RetryDue(put))
    assert [write.drop for write in world.run()] == [(pod.uid,)]
    assert len(world.slicer.state.allocations) == 0


def test_a_promise_of_which_nobody_knows_whether_it_was_written_is_removed_when_it_is_given_up(
    world: SlicerWorld,
) -> None:
    """An agent removes a result without a promise, so asking for the slices by one would repeat for ever."""
    first = world.node("n1")
    pod = world.pod("a", "3g.20gb")
    world.slicer.decide()
    (put,) = world.slicer.pop_writes()
    world.slicer.handle(WriteOutcomeUnknown(put))
    world.slicer.handle(NodeObserved(replace(first, cordoned=True)))
    world.node("n2")
    world.run()
    world.slicer.handle(RetryDue(put))
    world.settle()
    assert [write.drop for write in world.writes if write.key == ("spec", "n1")] == [(pod.uid,)]
    assert not [write for write in world.writes if write.key == ("status", "n1")]
    assert [place[0] for place in world.where(pod)] == ["n2"]


@pytest.mark.parametrize("answered", [False, True], ids=["before the agent answers", "after the agent answered"])
def test_a_new_process_goes_on_giving_up_what_the_last_one_asked_back(world: SlicerWorld, answered: bool) -> None:
    """The node is open again by then, and the agent has destroyed the slices or is about to."""
    first = world.node("n1")
    pod = world.pod("a", "3g.20gb")
    world.slicer.decide()
    (put,) = world.slicer.pop_writes()
    world.answer(put)
    world.slicer.handle(NodeObserved(replace(first, cordoned=True)))
    world.slicer.decide()
    (ask,) = [each for each in world.slicer.pop_writes() if isinstance(each, PatchResults)]
    world.apply(ask)
    assert world.states(pod) == ("deleting", "")
    if answered:
        world.agents()
    world.restart()
    world.settle()
    assert world.states(pod) == ("ungated", "created")
