"""What happens around a move that is under way: pods and nodes that change, controllers that die, hostile tenants."""

from dataclasses import replace
from typing import Any

import pytest
from tests.controller.slicing.test_moves import (
    cluster_with,
    evicted,
    fragmented,
    running,
    start,
    two_rooms,
    waiting,
)
from tests.support.slicer_cluster import SlicerCluster

from tessera.api.names import NodeName
from tessera.controller.base import MoveMode
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.slicing.state.events import NodeObserved
from tessera.controller.slicing.state.instructions import PatchRequests
from tessera.controller.slicing.state.node_records import MOVES_ANNOTATION


@pytest.fixture
def cluster() -> SlicerCluster:
    return cluster_with()


def decide_move(cluster: SlicerCluster, **small: Any) -> tuple[PodInfo, PatchRequests]:
    """A move is decided, and its record is on its way to the API server; the eviction waits for the answer."""
    large = fragmented(cluster, **small)
    cluster.pass_time(61)
    cluster.agents()
    cluster.slicer.decide()
    (record,) = [each for each in cluster.slicer.pop_writes() if isinstance(each, PatchRequests)]
    assert MOVES_ANNOTATION in record.annotations
    assert evicted(cluster) == []
    return large, record


def answer(cluster: SlicerCluster, record: PatchRequests) -> None:
    cluster.answer(record)
    cluster.settle()


def test_the_eviction_follows_the_answer(cluster: SlicerCluster) -> None:
    large, record = decide_move(cluster)
    answer(cluster, record)
    assert evicted(cluster) == ["small"]
    assert cluster.where(large)


def test_a_cordon_of_the_place_spares_the_pod(cluster: SlicerCluster) -> None:
    large, record = decide_move(cluster)
    cluster.nodes[NodeName("n1")] = replace(cluster.nodes[NodeName("n1")], cordoned=True)
    cluster.slicer.handle(NodeObserved(cluster.nodes[NodeName("n1")]))
    answer(cluster, record)
    cluster.wait(61)
    assert (evicted(cluster), cluster.where(large)) == ([], [])


def test_an_author_who_takes_the_annotation_back_keeps_the_pod(cluster: SlicerCluster) -> None:
    large, record = decide_move(cluster)
    cluster.put(replace(cluster.pods["uid-small"], movable=False))
    answer(cluster, record)
    cluster.wait(61)
    assert (evicted(cluster), cluster.where(large), cluster.slicer.mover.refused) == ([], [], 1)
    assert cluster.slicer.state.reservations == {}


def test_a_pod_that_ends_by_itself_is_not_evicted_and_leaves_its_place(cluster: SlicerCluster) -> None:
    large, record = decide_move(cluster)
    cluster.remove(cluster.pods["uid-small"])
    answer(cluster, record)
    assert evicted(cluster) == []
    assert [node for node, _, _ in cluster.where(large)] == ["n1"]


def test_a_waiting_pod_that_is_deleted_spares_the_pod(cluster: SlicerCluster) -> None:
    large, record = decide_move(cluster)
    cluster.remove(large)
    answer(cluster, record)
    cluster.wait(61)
    assert evicted(cluster) == []
    assert cluster.slicer.state.reservations == {}


def test_a_waiting_pod_that_gets_another_place_spares_the_pod(cluster: SlicerCluster) -> None:
    large, record = decide_move(cluster)
    cluster.node("n3")
    answer(cluster, record)
    cluster.wait(61)
    assert cluster.where(large)
    assert (evicted(cluster) == []) is ([node for node, _, _ in cluster.where(large)] == ["n3"])


@pytest.mark.parametrize("recorded", [False, True], ids=["record lost", "record stored"])
def test_a_controller_that_dies_before_the_eviction(cluster: SlicerCluster, recorded: bool) -> None:
    large, record = decide_move(cluster)
    if recorded:
        cluster.apply(record)
    cluster.restart()
    cluster.wait(62)
    # of a record that is stored the next controller cannot know whether the pod was evicted, so the pod rests
    assert evicted(cluster) == ([] if recorded else ["small"])
    cluster.wait(3600)
    cluster.wait(61)
    assert evicted(cluster) == ["small"]
    assert cluster.where(large)


@pytest.mark.parametrize("reserve_after", [None, 60.0], ids=["reservations off", "reservations on"])
def test_a_controller_that_dies_after_the_eviction_keeps_the_place(reserve_after: float | None) -> None:
    cluster = cluster_with(reserve_after=reserve_after)
    large, record = decide_move(cluster)
    cluster.answer(record)
    cluster.put(replace(cluster.pods["uid-small"], terminating=True))
    cluster.resume()
    young = waiting(cluster, "young", "4g.20gb")
    cluster.remove(cluster.pods["uid-small"])
    cluster.settle()
    assert [node for node, _, _ in cluster.where(large)] == ["n1"]
    assert cluster.where(young) == []


def test_a_controller_that_dies_between_two_moves(cluster: SlicerCluster) -> None:
    for node in ("n1", "n2"):
        cluster.node(node)
    for number in range(2):
        running(cluster, f"small-{number}", "1g.5gb", "n1")
    running(cluster, "half", "4g.20gb", "n2", movable=False)
    cluster.pass_time(600)
    large = waiting(cluster, "large", "7g.40gb")
    cluster.pass_time(61)
    cluster.agents()
    while not evicted(cluster):
        cluster.slicer.decide()
        for write in cluster.slicer.pop_writes():
            cluster.answer(write)
    cluster.restart()
    cluster.wait(61)
    cluster.wait(61)
    assert sorted(evicted(cluster)) == ["small-0", "small-1"], "the second one was not recorded yet, so it moves now"
    assert cluster.where(large)


def test_a_long_grace_period_makes_a_move_worth_less(cluster: SlicerCluster) -> None:
    large = fragmented(cluster, grace=30.0)
    find = cluster.slicer.rooms.find
    short = find(cluster.pods[large.uid], 3).worth.gain
    cluster.put(replace(cluster.pods["uid-small"], grace=300.0))
    assert find(cluster.pods[large.uid], 3).worth.gain == short - 8 * 270
    cluster.put(replace(cluster.pods["uid-small"], grace=1e18))
    cluster.wait(61)
    assert (find(cluster.pods[large.uid], 3).worth.gain, evicted(cluster)) == (0, [])


def test_two_owners_that_make_room_for_each_other_move_once_an_hour(cluster: SlicerCluster) -> None:
    """A tenant lets two owners' pods wait and move for each other without an end."""
    large = fragmented(cluster, owner="a")
    for _ in range(120):
        cluster.wait(60)
        for pod in list(cluster.pods.values()):
            if not pod.gated and not pod.node:
                start(cluster, pod)
        names = {pod.owner for pod in cluster.pods.values()}
        if "a" not in names:
            waiting(cluster, f"a-{cluster.date}", "1g.5gb", owner="a", movable=True)
        if "b" not in names:
            waiting(cluster, f"b-{cluster.date}", "7g.40gb", owner="b", movable=True)
        if cluster.pods.get(large.uid) is not None and cluster.pods[large.uid].node:
            cluster.remove(cluster.pods[large.uid])
    assert len(evicted(cluster)) <= 2 * 3, "two owners, in two hours and a bit"


def test_queues_take_turns_so_that_many_waiting_pods_get_no_more_moves() -> None:
    cluster = cluster_with(per_hour=2)
    two_rooms(cluster)
    for number in range(9):
        waiting(cluster, f"greedy-{number}", "7g.40gb", namespace="greedy", deadline=86_400.0)
    cluster.pass_time(30)
    modest = waiting(cluster, "modest", "7g.40gb", namespace="modest")
    for _ in range(60):
        cluster.wait(2.5)
    assert len(evicted(cluster)) == 2
    assert cluster.where(modest)


def test_each_queue_is_searched_for_within_a_minute_or_two() -> None:
    cluster = cluster_with(MoveMode.RECOMMEND)
    fragmented(cluster)
    for number in range(30):
        waiting(cluster, f"w-{number}", "7g.40gb", namespace=f"team-{number}")
    for _ in range(60):
        cluster.wait(2.5)
    assert len(cluster.slicer.mover.rooms) == 31
