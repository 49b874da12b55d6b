"""Slices of a running pod that lost their record: the node's agent says whose they are, and they are recorded anew."""

from dataclasses import replace
from typing import Any

import pytest
from tests.support.slicer_cluster import SlicerCluster

from tessera.controller.objects.pod_info import PodInfo

Held = tuple[str, int, int, str]


def says(cluster: SlicerCluster, *held: Held) -> None:
    """The agent tells of slices without a promise: profile, start, size, and the UID of the pod that they are for."""
    foreign = [
        {"gpuUUID": "GPU-n1-0", "profile": profile, "start": start, "size": size, "podUID": uid}
        for profile, start, size, uid in held
    ]
    cluster.patch("n1", {"status": {"nodeResources": {"foreign": foreign}}})


def running(cluster: SlicerCluster, *profiles: str, node: str = "n1") -> PodInfo:
    """A pod that runs, of which no record says anything."""
    return cluster.pod("a", *profiles, node=node, gates=())


def test_they_are_promised_where_they_are(cluster: SlicerCluster) -> None:
    cluster.node("n1")
    pod = running(cluster, "1g.5gb", "3g.20gb")
    says(cluster, ("3g.20gb", 4, 4, pod.uid), ("1g.5gb", 2, 1, pod.uid))
    cluster.settle()
    assert sorted(cluster.where(pod)) == [("n1", "1g.5gb", 2), ("n1", "3g.20gb", 4)]
    assert cluster.states(pod) == ("ungated", "created")
    says(cluster)
    other = cluster.pod("b", "1g.5gb")
    cluster.settle()
    assert cluster.where(other) not in ([], [("n1", "1g.5gb", 2)])
    cluster.remove(pod)
    cluster.settle()
    assert cluster.where(pod) == []


def test_the_pod_may_be_seen_after_the_agents_word(cluster: SlicerCluster) -> None:
    cluster.node("n1")
    says(cluster, ("3g.20gb", 4, 4, "uid-a"))
    cluster.settle()
    pod = running(cluster, "3g.20gb")
    assert pod.uid == "uid-a"
    cluster.settle()
    assert cluster.where(pod) == [("n1", "3g.20gb", 4)]


def test_a_new_process_does_the_same_after_any_write(cluster: SlicerCluster) -> None:
    cluster.node("n1")
    pod = running(cluster, "3g.20gb")
    says(cluster, ("3g.20gb", 4, 4, pod.uid))
    for _ in range(3):
        cluster.restart()
        cluster.slicer.decide()
        for instruction in list(cluster.slicer.pop_writes())[:1]:
            cluster.answer(instruction)
    cluster.settle()
    assert cluster.where(pod) == [("n1", "3g.20gb", 4)]
    assert cluster.states(pod) == ("ungated", "created")


@pytest.mark.parametrize(
    "held",
    [
        [("3g.20gb", 4, 4, "uid-other")],
        [("3g.20gb", 4, 4, "")],
        [("2g.10gb", 4, 2, "uid-a")],
        [("3g.20gb", 4, 4, "uid-a"), ("1g.5gb", 0, 1, "uid-a")],
        [("3g.20gb", 4, 4, "uid-a"), ("3g.20gb", 4, 4, "uid-a")],
        [("3g.20gb", 4, 2, "uid-a")],
        [("3g.20gb", 31, 1, "uid-a")],
        [("3g.20gb", 2, 4, "uid-a")],
        [("9g.90gb", 0, 4, "uid-a")],
    ],
    ids=[
        "another-pod",
        "no-pod",
        "another-profile",
        "more",
        "twice",
        "smaller",
        "outside",
        "illegal",
        "no-such-profile",
    ],
)
def test_what_does_not_fit_the_pod_is_never_recorded_as_its_own(cluster: SlicerCluster, held: list[Held]) -> None:
    cluster.node("n1")
    running(cluster, "3g.20gb")
    says(cluster, *held)
    cluster.settle()
    promises = cluster.read("n1").spec.pod_allocation_requests
    told = {(each.profile, each.start, each.size, uid) for uid, entry in promises.items() for each in entry.slices}
    assert not told & set(held), "at most it is promised another place"
    assert cluster.overlaps() == []


def test_slots_that_are_promised_already_are_not_taken(cluster: SlicerCluster) -> None:
    cluster.node("n1")
    first = cluster.pod("b", "3g.20gb")
    cluster.settle()
    ((_, _, start),) = cluster.where(first)
    pod = running(cluster, "3g.20gb")
    says(cluster, ("3g.20gb", start, 4, pod.uid))
    cluster.settle()
    assert cluster.where(first) == [("n1", "3g.20gb", start)]
    assert cluster.where(pod) != cluster.where(first)


def test_a_pod_of_another_node_is_none_of_this_agents(cluster: SlicerCluster) -> None:
    cluster.node("n1")
    cluster.node("n2")
    pod = running(cluster, "3g.20gb", node="n2")
    says(cluster, ("3g.20gb", 4, 4, pod.uid))
    cluster.settle()
    assert {node for node, _, _ in cluster.where(pod)} <= {"n2"}


@pytest.mark.parametrize("change", [{"finished": True}, {"gates": ("instaslice.redhat.com/accelerator",), "node": ""}])
def test_a_pod_that_does_not_run_is_not_one_that_holds_them(cluster: SlicerCluster, change: dict[str, Any]) -> None:
    cluster.node("n1")
    pod = cluster.put(replace(running(cluster, "3g.20gb"), **change))
    says(cluster, ("3g.20gb", 4, 4, pod.uid))
    cluster.settle()
    assert cluster.where(pod) in ([], [("n1", "3g.20gb", 0)])


@pytest.mark.parametrize(("asked", "named"), [("1g.5gb", "1g.5gb"), ("1g.5gb.me", "1g.5gb+me")])
def test_a_result_that_lost_its_promise_keeps_profile_and_pod_over_a_restart(
    cluster: SlicerCluster, asked: str, named: str
) -> None:
    """The five keys of a result name no profile; a promise without one would make the agent destroy the slice."""
    cluster.node("n1")
    pod = cluster.pod("a", asked)
    cluster.settle()
    ((_, _, start),) = cluster.where(pod)
    cluster.patch("n1", {"spec": {"podAllocationRequests": {pod.uid: None}}})
    cluster.restart()
    cluster.run()
    request = cluster.read("n1").spec.pod_allocation_requests[pod.uid]
    assert (request.profile, [each.profile for each in request.slices]) == (named, [named])
    assert cluster.where(pod) == [("n1", named, start)]
    assert (request.pod_ref.namespace, request.pod_ref.name) == (pod.namespace, pod.name)
    assert request.resources.requests == {"cpu": "1000m"}
