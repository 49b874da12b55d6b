"""Writes that are under way, refused or late, and records that contradict each other: nobody loses what runs."""

from dataclasses import replace

from tests.support.slicer_cluster import SlicerCluster

from tessera.api.names import GATE, NodeName
from tessera.controller.slicing.state.events import InstasliceDeleted, NodeObserved, PodObserved, RetryDue, WriteRefused
from tessera.controller.slicing.state.instructions import PatchRequests, Ungate


def record(cluster: SlicerCluster, node: str, uid: str, like: str) -> None:
    """A second record on a node, for the very slots of another pod's."""
    stored = cluster.objects[node]
    request = {**stored["spec"]["podAllocationRequests"][like]}
    request["podRef"] = {**request["podRef"], "uid": uid, "name": uid.removeprefix("uid-")}
    result = stored["status"]["podAllocationResults"][like]
    cluster.patch(node, {"spec": {"podAllocationRequests": {uid: request}}})
    cluster.patch(node, {"status": {"podAllocationResults": {uid: result}}})


def test_one_write_of_a_kind_is_under_way_for_a_node(cluster: SlicerCluster) -> None:
    cluster.node("n1")
    cluster.pod("a", "1g.5gb")
    cluster.slicer.decide()
    (first,) = cluster.slicer.pop_writes()
    cluster.pod("b", "1g.5gb")
    cluster.slicer.decide()
    assert list(cluster.slicer.pop_writes()) == []
    cluster.answer(first)
    (second, *_) = cluster.run()
    assert set(second.put) == {"uid-b"}


def test_slots_of_a_request_that_is_under_way_are_nobody_elses(cluster: SlicerCluster) -> None:
    cluster.node("n1")
    pod = cluster.pod("a", "7g.40gb")
    cluster.slicer.decide()
    (write,) = cluster.slicer.pop_writes()
    cluster.remove(pod)
    other = cluster.pod("b", "7g.40gb")
    cluster.run()
    assert set(cluster.slicer.state.waiting) == {other.uid}
    cluster.answer(write)
    cluster.settle()
    assert cluster.states(other) == ("ungated", "created")


def test_a_request_that_was_refused_leaves_nothing_to_clean_up(cluster: SlicerCluster) -> None:
    cluster.node("n1")
    pod = cluster.pod("a", "7g.40gb")
    cluster.slicer.decide()
    (write,) = cluster.slicer.pop_writes()
    cluster.slicer.handle(WriteRefused(write))
    cluster.remove(pod)
    cluster.slicer.handle(RetryDue(write))
    assert cluster.run() == []
    other = cluster.pod("b", "7g.40gb")
    cluster.settle()
    assert cluster.states(other) == ("ungated", "created")


def test_a_cordon_while_the_ungating_is_under_way_takes_nothing_from_the_pod(cluster: SlicerCluster) -> None:
    node = cluster.node("n1")
    pod = cluster.pod("a", "1g.5gb")
    ungate = None
    while ungate is None:
        cluster.slicer.decide()
        for one in cluster.slicer.pop_writes():
            if isinstance(one, Ungate):
                ungate = one
            else:
                cluster.answer(one)
    cluster.slicer.handle(NodeObserved(replace(node, cordoned=True)))
    assert cluster.run() == []
    cluster.answer(ungate)
    cluster.settle()
    assert cluster.states(pod) == ("ungated", "created")


def test_an_older_state_of_a_pod_is_ignored(cluster: SlicerCluster) -> None:
    cluster.node("n1")
    old = cluster.pod("a", "1g.5gb", version=4)
    cluster.settle()
    cluster.put(replace(cluster.pods[old.uid], version=6))
    cluster.slicer.handle(PodObserved(old))
    assert cluster.run() == []


def test_an_object_deleted_before_the_gate_opens_sends_the_pod_elsewhere(cluster: SlicerCluster) -> None:
    cluster.node("n1")
    pod = cluster.pod("a", "1g.5gb")
    cluster.slicer.decide()
    (request,) = cluster.slicer.pop_writes()
    cluster.answer(request)
    del cluster.objects["n1"]
    cluster.slicer.handle(InstasliceDeleted(NodeName("n1")))
    cluster.node("n2")
    cluster.settle()
    assert [node for node, _, _ in cluster.where(pod)] == ["n2"]


def test_of_two_records_for_the_same_slots_the_pod_that_runs_keeps_them(cluster: SlicerCluster) -> None:
    cluster.node("n1", count=2)
    waits = cluster.pod("a", "7g.40gb")
    cluster.settle()
    runs = cluster.pod("b", "7g.40gb", gates=(), node="n1")
    record(cluster, "n1", runs.uid, like=waits.uid)
    cluster.pods[waits.uid] = replace(waits, gates=(GATE,))
    first = cluster.read("n1").spec.pod_allocation_requests[runs.uid].slices
    cluster.resume()
    assert cluster.read("n1").spec.pod_allocation_requests[runs.uid].slices == first
    assert cluster.overlaps() == []
    assert cluster.states(waits) == cluster.states(runs) == ("ungated", "created")


def test_of_two_promises_to_a_pod_the_one_where_it_runs_is_kept_and_not_touched(cluster: SlicerCluster) -> None:
    cluster.node("n2")
    pod = cluster.pod("a", "3g.20gb")
    cluster.settle()
    cluster.node("n1")
    stored = cluster.objects["n2"]
    cluster.patch("n1", {"spec": stored["spec"]})
    cluster.patch("n1", {"status": {"podAllocationResults": stored["status"]["podAllocationResults"]}})
    cluster.pods[pod.uid] = replace(cluster.pods[pod.uid], node=NodeName("n2"))
    cluster.restart()
    assert {write.node for write in cluster.run()} == {"n1"}
    cluster.settle()
    assert [node for node, _, _ in cluster.where(pod)] == ["n2"]


def test_the_record_of_a_pod_that_runs_already_costs_one_write(cluster: SlicerCluster) -> None:
    cluster.node("n1")
    pod = cluster.pod("a", "3g.20gb", gates=(), node="n1")
    assert [type(write) for write in cluster.run()] == [PatchRequests]
    cluster.agents()
    assert cluster.states(pod) == ("ungated", "created")
