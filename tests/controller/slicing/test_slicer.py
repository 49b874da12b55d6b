"""The slicer, driven by plain values."""

from dataclasses import replace

import pytest
from tests.support.slicer_cluster import SlicerCluster

from tessera.api.names import NodeName, PodUid
from tessera.controller.slicing.state.events import (
    InstasliceDeleted,
    InstasliceObserved,
    NodeDeleted,
    NodeObserved,
    RetryDue,
    UngateDenied,
    WriteOutcomeUnknown,
    WriteRefused,
)
from tessera.controller.slicing.state.instructions import PatchRequests, PatchResults, Ungate


def test_a_pod_is_promised_and_ungated_in_two_writes(cluster: SlicerCluster) -> None:
    cluster.node("n1")
    pod = cluster.pod("a", "3g.20gb")
    writes = cluster.run()
    assert [type(write) for write in writes] == [PatchRequests, Ungate]
    assert cluster.states(pod) is None
    cluster.agents()
    assert cluster.run() == []
    assert cluster.states(pod) == ("ungated", "created")
    assert cluster.pods[pod.uid].hostname == "n1"


def test_nothing_is_written_for_a_pod_that_finds_no_place(cluster: SlicerCluster) -> None:
    cluster.pod("a", "3g.20gb")
    assert cluster.run() == []
    assert [tell.reason for tell in cluster.told] == ["SliceWaiting"]


def test_seven_small_pods_sit_on_one_card_and_share_their_writes(cluster: SlicerCluster) -> None:
    cluster.node("n1", count=4)
    pods = [cluster.pod(f"p{i}", "1g.5gb") for i in range(7)]
    writes = cluster.run()
    assert len(writes) == 1 + 7
    assert (
        len(
            {
                gpu
                for pod in pods
                for gpu in (cluster.read("n1").spec.pod_allocation_requests[pod.uid].slices[0].gpu_uuid,)
            }
        )
        == 1
    )
    assert cluster.overlaps() == []


def test_the_one_too_many_waits_and_gets_the_slot_that_comes_free(cluster: SlicerCluster) -> None:
    cluster.node("n1", count=4)
    pods = [cluster.pod(f"p{i:02}", "1g.5gb") for i in range(28)]
    cluster.settle()
    late = cluster.pod("late", "1g.5gb")
    assert cluster.run() == []
    assert [(tell.name, tell.reason) for tell in cluster.told] == [("late", "SliceWaiting")]
    freed = cluster.where(pods[5])
    cluster.remove(pods[5])
    (write,) = cluster.run()
    assert isinstance(write, PatchRequests), "the one write that the end of a pod costs the controller"
    assert write.drop == (pods[5].uid,)
    assert cluster.states(pods[5]) == ("ungated", "created"), "its slice is not destroyed yet"
    assert cluster.where(late) == []
    cluster.agents()
    cluster.slicer.decide()
    assert cluster.slicer.state.allocations.current_of(late.uid) is not None, (
        "the slot is offered in the event that frees it"
    )
    cluster.settle()
    assert cluster.where(late) == freed
    assert cluster.states(late) == ("ungated", "created")


def test_a_pod_that_comes_with_a_free_slot_does_not_get_it_before_an_older_one(cluster: SlicerCluster) -> None:
    cluster.node("n1")
    pods = [cluster.pod(f"p{i}", "1g.5gb") for i in range(7)]
    older = cluster.pod("older", "1g.5gb")
    cluster.settle()
    cluster.remove(pods[0])
    cluster.run()
    cluster.agents()
    younger = cluster.pod("younger", "1g.5gb", created="9")
    cluster.settle()
    assert cluster.where(older)
    assert not cluster.where(younger)


def test_a_deleted_pod_leaves_nothing(cluster: SlicerCluster) -> None:
    cluster.node("n1")
    pod = cluster.pod("a", "3g.20gb")
    cluster.settle()
    cluster.remove(pod)
    cluster.settle()
    assert cluster.empty()
    assert len(cluster.slicer.state.allocations) == 0
    assert all(card.occupancy == 0 for card in cluster.slicer.state.inventory.fleet.cards())


def test_a_finished_pod_gives_its_slice_back_while_its_object_stays(cluster: SlicerCluster) -> None:
    cluster.node("n1")
    pod = cluster.pod("a", "3g.20gb")
    cluster.settle()
    cluster.put(replace(cluster.pods[pod.uid], node=NodeName("n1"), finished=True))
    cluster.settle()
    assert cluster.empty()


def test_a_pod_deleted_before_its_promise_was_written_costs_no_write(cluster: SlicerCluster) -> None:
    cluster.node("n1")
    pod = cluster.pod("a", "7g.40gb")
    cluster.slicer.decide()
    cluster.remove(pod)
    assert cluster.run() == []
    other = cluster.pod("b", "7g.40gb")
    cluster.settle()
    assert cluster.states(other) == ("ungated", "created")


def test_a_pod_deleted_while_its_promise_is_in_flight_keeps_the_slots_until_the_agent_answers(
    cluster: SlicerCluster,
) -> None:
    cluster.node("n1")
    pod = cluster.pod("a", "7g.40gb")
    cluster.slicer.decide()
    (write,) = cluster.slicer.pop_writes()
    cluster.remove(pod)
    other = cluster.pod("b", "7g.40gb")
    cluster.run()
    assert cluster.where(other) == [], "the request may still arrive at the server"
    cluster.answer(write)
    cluster.settle()
    assert cluster.where(pod) == []
    assert cluster.states(other) == ("ungated", "created")


@pytest.mark.parametrize("writes", range(5))
def test_a_new_process_goes_on_after_any_write(cluster: SlicerCluster, writes: int) -> None:
    cluster.node("n1")
    pod = cluster.pod("a", "2g.10gb", "3g.20gb")
    left = writes
    while left:
        cluster.slicer.decide()
        for instruction in cluster.slicer.pop_writes():
            if left:
                cluster.answer(instruction)
                left -= 1
        if not cluster.slicer.has_work:
            break
    before = cluster.where(pod)
    cluster.resume()
    assert cluster.states(pod) == ("ungated", "created")
    assert not before or cluster.where(pod) == before
    cluster.remove(pod)
    cluster.settle()
    assert cluster.empty()


def test_entries_of_pods_that_no_longer_exist_are_released_at_start(cluster: SlicerCluster) -> None:
    cluster.node("n1")
    pod = cluster.pod("a", "3g.20gb")
    cluster.settle()
    del cluster.pods[pod.uid]
    cluster.resume()
    assert cluster.empty()


def test_another_operators_gate_goes_first(cluster: SlicerCluster) -> None:
    cluster.node("n1")
    pod = cluster.pod("a", "1g.5gb", gates=("kueue.x-k8s.io/admission", "instaslice.redhat.com/accelerator"))
    assert cluster.run() == []
    cluster.put(replace(pod, gates=("instaslice.redhat.com/accelerator",)))
    cluster.settle()
    assert cluster.states(pod) == ("ungated", "created")


def test_a_cordon_before_the_gate_opens_moves_the_promise_elsewhere(cluster: SlicerCluster) -> None:
    first = cluster.node("n1")
    pod = cluster.pod("a", "1g.5gb")
    cluster.slicer.decide()
    (request,) = cluster.slicer.pop_writes()
    cluster.answer(request)
    cluster.slicer.handle(NodeObserved(replace(first, cordoned=True)))
    cluster.node("n2")
    cluster.settle()
    assert [place[0] for place in cluster.where(pod)] == ["n2"]
    assert cluster.states(pod) == ("ungated", "created")


def until_ungating(cluster: SlicerCluster) -> Ungate:
    """Decides and writes until a pod is to be ungated, and stops there."""
    while True:
        cluster.slicer.decide()
        found = cluster.slicer.pop_writes()
        for one in found:
            if isinstance(one, Ungate):
                return one
            cluster.answer(one)


def test_a_cordon_while_the_ungating_could_not_be_sent_moves_the_promise_elsewhere(cluster: SlicerCluster) -> None:
    first = cluster.node("n1")
    pod = cluster.pod("a", "1g.5gb")
    ungate = until_ungating(cluster)
    cluster.slicer.handle(WriteRefused(ungate))
    cluster.slicer.handle(NodeObserved(replace(first, cordoned=True)))
    cluster.node("n2")
    cluster.run()
    cluster.slicer.handle(RetryDue(ungate))
    cluster.run()
    assert cluster.pods[pod.uid].hostname != "n1"
    cluster.settle()
    assert [place[0] for place in cluster.where(pod)] == ["n2"]


def test_a_node_that_vanishes_while_the_ungating_could_not_be_sent_moves_the_promise_elsewhere(
    cluster: SlicerCluster,
) -> None:
    cluster.node("n1")
    pod = cluster.pod("a", "1g.5gb")
    ungate = until_ungating(cluster)
    cluster.slicer.handle(WriteOutcomeUnknown(ungate))
    del cluster.nodes["n1"]
    cluster.slicer.handle(NodeDeleted(NodeName("n1")))
    cluster.node("n2")
    cluster.slicer.decide()
    cluster.slicer.handle(RetryDue(ungate))
    cluster.run()
    assert [place[0] for place in cluster.where(pod)] == ["n2"]


def test_a_pod_that_is_to_be_deleted_and_never_ran_keeps_nothing_however_long_a_finalizer_keeps_it(
    cluster: SlicerCluster,
) -> None:
    cluster.node("n1")
    pod = cluster.pod("a", "7g.40gb")
    cluster.settle()
    cluster.put(replace(cluster.pods[pod.uid], terminating=True))
    cluster.settle()
    assert cluster.empty()
    assert cluster.run() == []
    other = cluster.pod("b", "7g.40gb")
    cluster.settle()
    assert cluster.states(other) == ("ungated", "created")


def test_a_pod_that_is_to_be_deleted_keeps_its_slices_while_it_runs(cluster: SlicerCluster) -> None:
    cluster.node("n1")
    pod = cluster.pod("a", "7g.40gb")
    cluster.settle()
    cluster.put(replace(cluster.pods[pod.uid], terminating=True, node=NodeName("n1")))
    cluster.settle()
    assert cluster.states(pod) == ("ungated", "created")


def test_a_cordon_after_the_gate_opened_changes_nothing(cluster: SlicerCluster) -> None:
    first = cluster.node("n1")
    pod = cluster.pod("a", "1g.5gb")
    cluster.settle()
    cluster.slicer.handle(NodeObserved(replace(first, cordoned=True)))
    assert cluster.run() == []
    assert cluster.states(pod) == ("ungated", "created")


def test_foreign_slices_are_in_the_way(cluster: SlicerCluster) -> None:
    cluster.node("n1")
    foreign = [{"gpuUUID": "GPU-n1-0", "start": 0, "size": 4, "profile": "3g.20gb"}]
    cluster.patch("n1", {"status": {"nodeResources": {"foreign": foreign}}})
    pods = [cluster.pod("a", "3g.20gb"), cluster.pod("b", "3g.20gb")]
    cluster.settle()
    assert [cluster.where(pod) for pod in pods] == [[("n1", "3g.20gb", 4)], []]
    cluster.patch("n1", {"status": {"nodeResources": {"foreign": []}}})
    cluster.settle()
    assert cluster.where(pods[1]) == [("n1", "3g.20gb", 0)]


def test_a_node_without_the_label_gets_no_promises(cluster: SlicerCluster) -> None:
    node = cluster.node("n1", labels={"kubernetes.io/hostname": "n1"})
    pod = cluster.pod("a", "1g.5gb")
    assert cluster.run() == []
    cluster.slicer.handle(NodeObserved(replace(node, labels={**node.labels, "nvidia.com/mig.config": "dynamic"})))
    cluster.settle()
    assert cluster.states(pod) == ("ungated", "created")


def test_cpu_of_the_whole_batch_is_counted(cluster: SlicerCluster) -> None:
    cluster.node("n1", count=4, allocatable={"cpu": 3000, "pods": 110})
    pods = [cluster.pod(f"p{i}", "1g.5gb", amounts={"cpu": 2000, "pods": 1}) for i in range(2)]
    cluster.settle()
    assert [bool(cluster.where(pod)) for pod in pods] == [True, False]
    assert "Insufficient cpu" in cluster.told[0].message


def test_a_pod_that_ends_makes_room_for_one_that_waits_for_cpu(cluster: SlicerCluster) -> None:
    cluster.node("n1", allocatable={"cpu": 3000, "pods": 110})
    other = cluster.pod("plain", gates=(), node="n1", amounts={"cpu": 2500, "pods": 1})
    pod = cluster.pod("a", "1g.5gb")
    cluster.settle()
    assert cluster.where(pod) == []
    cluster.remove(other)
    cluster.settle()
    assert cluster.states(pod) == ("ungated", "created")


def test_higher_priority_goes_first(cluster: SlicerCluster) -> None:
    cluster.node("n1")
    low = cluster.pod("low", "7g.40gb")
    high = cluster.pod("high", "7g.40gb", priority=10)
    cluster.settle()
    assert cluster.where(high)
    assert not cluster.where(low)


def test_a_name_used_again_is_another_pod(cluster: SlicerCluster) -> None:
    cluster.node("n1")
    old = cluster.pod("web-0", "7g.40gb")
    cluster.settle()
    del cluster.pods[old.uid]
    new = cluster.put(replace(old, uid=PodUid("uid-second"), gates=("instaslice.redhat.com/accelerator",)))
    cluster.settle()
    assert cluster.states(new) == ("ungated", "created")
    assert cluster.where(old) == []


def test_a_deleted_object_is_filled_again_for_the_pods_that_run(cluster: SlicerCluster) -> None:
    cluster.node("n1")
    running, gone = cluster.pod("a", "3g.20gb"), cluster.pod("b", "2g.10gb")
    cluster.settle()
    before = cluster.where(running)
    saved = cluster.objects.pop("n1")
    cluster.slicer.handle(InstasliceDeleted(NodeName("n1")))
    cluster.remove(gone)
    cluster.run()
    cluster.objects["n1"] = {
        "metadata": dict(saved["metadata"]),
        "status": {"nodeResources": saved["status"]["nodeResources"]},
    }
    cluster.patch("n1", {})
    cluster.settle()
    assert cluster.where(running) == before
    assert cluster.states(running) == ("ungated", "created")
    assert cluster.where(gone) == []


def test_a_running_pod_without_a_record_gets_one_after_a_restart(cluster: SlicerCluster) -> None:
    cluster.node("n1")
    cluster.node("n2")
    pod = cluster.pod("a", "3g.20gb", gates=(), node="n2")
    cluster.settle()
    assert [place[0] for place in cluster.where(pod)] == ["n2"]
    assert cluster.states(pod) == ("ungated", "created")


def test_a_running_pod_without_a_record_and_without_room_is_told(cluster: SlicerCluster) -> None:
    cluster.node("n1")
    cluster.pod("a", "7g.40gb")
    cluster.settle()
    cluster.pod("b", "1g.5gb", gates=(), node="n1")
    cluster.settle()
    assert [(tell.name, tell.reason, tell.warning) for tell in cluster.told] == [("b", "SliceLost", True)]


def test_an_observation_older_than_the_last_answer_is_ignored(cluster: SlicerCluster) -> None:
    cluster.node("n1")
    stale = cluster.read("n1")
    pod = cluster.pod("a", "1g.5gb")
    cluster.settle()
    cluster.slicer.handle(InstasliceObserved(stale))
    assert cluster.run() == []
    assert cluster.states(pod) == ("ungated", "created")


def test_a_refused_ungating_is_told_and_the_slice_given_back(cluster: SlicerCluster) -> None:
    cluster.node("n1")
    pod = cluster.pod("a", "1g.5gb")
    cluster.slicer.handle(UngateDenied(until_ungating(cluster), "admission webhook says no"))
    cluster.settle()
    assert cluster.empty()
    assert cluster.told[-1].reason == "SliceRefused"
    cluster.put(replace(pod, priority=1))
    cluster.settle()
    assert cluster.states(pod) == ("ungated", "created")


def test_the_same_reason_is_told_once(cluster: SlicerCluster) -> None:
    cluster.node("n1")
    first = cluster.pod("a", "7g.40gb")
    cluster.pod("b", "7g.40gb")
    cluster.settle()
    cluster.node("n2", count=0)
    cluster.settle()
    assert len(cluster.told) == 1
    assert first.key in cluster.told[0].message


def test_an_agent_of_an_earlier_version_leaves_the_result_to_the_controller(cluster: SlicerCluster) -> None:
    cluster.node("n1")
    pod = cluster.pod("a", "3g.20gb")
    cluster.settle()
    cluster.remove(pod)
    cluster.run()
    deleted = {"allocationStatus": {"allocationStatusDaemonset": "deleted"}}
    cluster.patch("n1", {"status": {"podAllocationResults": {pod.uid: deleted}}})
    cluster.run()
    assert cluster.empty()


def test_an_agent_of_an_earlier_version_writes_no_result_and_its_slots_come_free(cluster: SlicerCluster) -> None:
    cluster.node("n1")
    pod = cluster.pod("a", "7g.40gb")
    cluster.run()
    cluster.remove(pod)
    cluster.run()
    assert cluster.empty()
    late = cluster.pod("late", "7g.40gb")
    cluster.run()
    assert cluster.where(late)


def test_a_promise_of_which_nobody_knows_whether_it_was_written_is_removed_with_its_pod(cluster: SlicerCluster) -> None:
    cluster.node("n1")
    pod = cluster.pod("a", "3g.20gb")
    cluster.slicer.decide()
    (put,) = cluster.slicer.pop_writes()
    cluster.slicer.handle(WriteOutcomeUnknown(put))
    cluster.remove(pod)
    cluster.slicer.handle(RetryDue(put))
    assert [write.drop for write in cluster.run()] == [(pod.uid,)]
    assert len(cluster.slicer.state.allocations) == 0


def test_a_promise_of_which_nobody_knows_whether_it_was_written_is_removed_when_it_is_given_up(
    cluster: SlicerCluster,
) -> None:
    """An agent removes a result without a promise, so asking for the slices by one would repeat for ever."""
    first = cluster.node("n1")
    pod = cluster.pod("a", "3g.20gb")
    cluster.slicer.decide()
    (put,) = cluster.slicer.pop_writes()
    cluster.slicer.handle(WriteOutcomeUnknown(put))
    cluster.slicer.handle(NodeObserved(replace(first, cordoned=True)))
    cluster.node("n2")
    cluster.run()
    cluster.slicer.handle(RetryDue(put))
    cluster.settle()
    assert [write.drop for write in cluster.writes if write.key == ("spec", "n1")] == [(pod.uid,)]
    assert not [write for write in cluster.writes if write.key == ("status", "n1")]
    assert [place[0] for place in cluster.where(pod)] == ["n2"]


@pytest.mark.parametrize("answered", [False, True], ids=["before the agent answers", "after the agent answered"])
def test_a_new_process_goes_on_giving_up_what_the_last_one_asked_back(cluster: SlicerCluster, answered: bool) -> None:
    """The node is open again by then, and the agent has destroyed the slices or is about to."""
    first = cluster.node("n1")
    pod = cluster.pod("a", "3g.20gb")
    cluster.slicer.decide()
    (put,) = cluster.slicer.pop_writes()
    cluster.answer(put)
    cluster.slicer.handle(NodeObserved(replace(first, cordoned=True)))
    cluster.slicer.decide()
    (ask,) = [each for each in cluster.slicer.pop_writes() if isinstance(each, PatchResults)]
    cluster.apply(ask)
    assert cluster.states(pod) == ("deleting", "")
    if answered:
        cluster.agents()
    cluster.resume()
    assert cluster.states(pod) == ("ungated", "created")
