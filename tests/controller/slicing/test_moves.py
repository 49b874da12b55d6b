"""Moves make room for waiting pods: recommended by default, or made within a budget, a price and rules."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from tests.support.slicer_cluster import SlicerCluster

from tessera.api.names import HOSTNAME_LABEL, NodeName, PodUid
from tessera.api.pod_annotations import Gang
from tessera.clock import rfc3339
from tessera.controller.base import MoveMode, MoveSettings
from tessera.controller.objects.pod_constraints import NodeConstraints
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.slicing.state.instructions import Evict, PatchRequests
from tessera.controller.slicing.state.node_records import MOVES_ANNOTATION, RECORD_BYTES, RecordedMove, format_moves


def cluster_with(mode: MoveMode = MoveMode.EVICT, per_hour: int = 20, **more: Any) -> SlicerCluster:
    made = SlicerCluster(moves=MoveSettings(mode=mode, per_hour=per_hour), **more)
    made.pass_time(0)
    return made


@pytest.fixture
def cluster() -> SlicerCluster:
    return cluster_with()


def on(node: str) -> NodeConstraints:
    return NodeConstraints(selector=((HOSTNAME_LABEL, node),))


def running(cluster: SlicerCluster, name: str, profile: str, node: str, **facts: Any) -> PodInfo:
    """A pod that runs on a node, and is pinned to it like every pod with slices."""
    facts = {"movable": True, "owner": f"owner-{name}", **facts}
    pod = waiting(cluster, name, profile, constraints=on(node), **facts)
    assert [each for each, _, _ in cluster.where(pod)] == [node]
    return start(cluster, pod)


def start(cluster: SlicerCluster, pod: PodInfo) -> PodInfo:
    """Lets a pod with slices start."""
    ((node, _, _),) = cluster.where(pod)
    return cluster.put(replace(cluster.pods[pod.uid], node=NodeName(node), started=cluster.date))


def waiting(cluster: SlicerCluster, name: str, *profiles: str, **facts: Any) -> PodInfo:
    """A pod that is created now."""
    pod = cluster.pod(name, *profiles, created=rfc3339(cluster.date), **facts)
    cluster.settle()
    return pod


def fragmented(cluster: SlicerCluster, **small: Any) -> PodInfo:
    """A small pod on n1, a half on n2, and a large one that waits although eleven slots are free."""
    for node in ("n1", "n2"):
        cluster.node(node)
    running(cluster, "small", "1g.5gb", "n1", **small)
    running(cluster, "half", "4g.20gb", "n2", movable=False)
    cluster.pass_time(600)
    return waiting(cluster, "large", "7g.40gb")


def two_rooms(cluster: SlicerCluster) -> None:
    """A small pod on n1 and one on n2. Both have room beside the half on n3, and either would leave a whole card."""
    for node in ("n1", "n2", "n3"):
        cluster.node(node)
    for node in ("n1", "n2"):
        running(cluster, f"on-{node}", "1g.5gb", node)
    running(cluster, "half", "4g.20gb", "n3", movable=False)
    cluster.pass_time(600)


def evicted(cluster: SlicerCluster) -> list[str]:
    return [write.name for write in cluster.writes if isinstance(write, Evict)]


def told(cluster: SlicerCluster, name: str) -> dict[str, str]:
    return {tell.reason: tell.message for tell in cluster.told if tell.name == name}


def test_a_small_pod_moves_so_that_a_whole_card_is_free(cluster: SlicerCluster) -> None:
    large = fragmented(cluster)
    assert evicted(cluster) == [], "most rooms come by themselves within a minute"
    cluster.wait(61)
    assert evicted(cluster) == ["small"]
    assert [node for node, _, _ in cluster.where(large)] == ["n1"]
    assert told(cluster, "small")["SliceMoved"] == (
        "Evicted, because default/large needs 7g.40gb on node n1, and this pod may move: it has the annotation"
        ' tessera.dev/movable: "true". Its owner makes it anew, and there was a place for it'
    )
    assert [node for node, _, _ in cluster.where(waiting(cluster, "small-2", "1g.5gb"))] == ["n2"]


def test_by_default_moves_are_only_recommended() -> None:
    assert MoveSettings() == MoveSettings(mode=MoveMode.RECOMMEND, per_hour=20)
    cluster = cluster_with(MoveMode.RECOMMEND)
    large = fragmented(cluster)
    cluster.wait(61)
    assert (evicted(cluster), cluster.where(large)) == ([], [])
    assert told(cluster, "large")["SliceRoomByMoves"] == (
        "7g.40gb would fit on node n1 if default/small ended and its owner made it anew elsewhere; the gain is more"
        " than the lost work. The moves: tessera defrag --plan"
    )
    assert list(cluster.slicer.mover.rooms) == [large.uid]
    cluster.wait(61)
    assert [tell.reason for tell in cluster.told].count("SliceRoomByMoves") == 1
    cluster.remove(large)
    cluster.wait(61)
    assert not cluster.slicer.mover.rooms


def test_off_looks_for_nothing() -> None:
    cluster = cluster_with(MoveMode.OFF)
    large = fragmented(cluster)
    cluster.wait(61)
    assert (evicted(cluster), cluster.where(large), "SliceRoomByMoves" in told(cluster, "large")) == ([], [], False)


@pytest.mark.parametrize(
    "facts",
    [{"movable": False}, {"owner": ""}, {"priority": 1}, {"gang": Gang("default/g", "g", 1)}],
    ids=["no annotation", "no owner", "higher priority", "of a gang"],
)
def test_these_pods_stay(cluster: SlicerCluster, facts: dict[str, Any]) -> None:
    large = fragmented(cluster, **facts)
    cluster.wait(61)
    assert (evicted(cluster), cluster.where(large)) == ([], [])


def test_a_pod_stays_while_its_next_one_finds_no_place(cluster: SlicerCluster) -> None:
    fragmented(cluster)
    plain = cluster.pod("plain", gates=(), node=NodeName("n2"), amounts={"cpu": 63_000, "pods": 1})
    cluster.wait(61)
    assert evicted(cluster) == []
    cluster.remove(plain)
    cluster.wait(61)
    assert evicted(cluster) == ["small"]


def test_a_move_that_costs_more_than_it_gains_is_not_made(cluster: SlicerCluster) -> None:
    for node in ("n1", "n2"):
        cluster.node(node)
    running(cluster, "ends", "3g.20gb", "n1", deadline=700.0)
    running(cluster, "half", "3g.20gb", "n2", movable=False)
    cluster.pass_time(600)
    large = waiting(cluster, "large", "7g.40gb")
    cluster.wait(61)
    found = cluster.slicer.rooms.find(cluster.pods[large.uid], 3)
    # the pod has run for 661 s and ends in 39 s; its removal takes 30 s with or without a move
    assert (found.worth.price, found.worth.gain, evicted(cluster)) == (4 * (661 + 60), 8 * 39, [])


@pytest.mark.parametrize(("deadline", "moved"), [(None, ["small"]), (130.0, [])])
def test_a_long_wait_behind_unknown_pods_is_expected_to_last_as_long_again(
    cluster: SlicerCluster, deadline: float | None, moved: list[str]
) -> None:
    """The pod in the way has just started, as others before it have; only a deadline says that it ends soon."""
    for node in ("n1", "n2"):
        cluster.node(node)
    running(cluster, "small", "1g.5gb", "n1")
    cluster.pass_time(3000)
    running(cluster, "half", "4g.20gb", "n2", movable=False, deadline=deadline)
    cluster.pod("large", "7g.40gb", waits_since=rfc3339(cluster.date - 2900))
    cluster.settle_and_wait(61)
    assert evicted(cluster) == moved


def test_of_equal_moves_the_one_that_loses_the_least_work_is_made(cluster: SlicerCluster) -> None:
    for node in ("n1", "n2", "n3"):
        cluster.node(node)
    running(cluster, "old", "1g.5gb", "n1")
    cluster.pass_time(1000)
    running(cluster, "young", "1g.5gb", "n2")
    running(cluster, "half", "4g.20gb", "n3", movable=False)
    cluster.pass_time(600)
    waiting(cluster, "large", "7g.40gb")
    cluster.wait(61)
    assert evicted(cluster) == ["young"]


def test_the_start_of_an_owners_last_pod_is_a_part_of_the_price(cluster: SlicerCluster) -> None:
    large = fragmented(cluster)
    before = cluster.slicer.rooms.find(cluster.pods[large.uid], 3).worth.price
    unstarted = replace(cluster.pods["uid-small"], uid=PodUid("uid-last"), name="last", profiles=(), unstarted=True)
    cluster.put(unstarted)
    cluster.settle()
    cluster.pass_time(45)
    cluster.put(replace(unstarted, unstarted=False))
    cluster.settle()
    cluster.pass_time(-45)
    assert cluster.slicer.rooms.find(cluster.pods[large.uid], 3).worth.price == before - 60 + 45


def test_an_eviction_waits_until_its_move_is_recorded(cluster: SlicerCluster) -> None:
    fragmented(cluster)
    cluster.wait(61)
    recorded = [isinstance(w, PatchRequests) and bool(w.annotations.get(MOVES_ANNOTATION)) for w in cluster.writes]
    assert recorded.index(True) < [isinstance(write, Evict) for write in cluster.writes].index(True)
    cluster.wait(3601)
    assert MOVES_ANNOTATION not in cluster.read("n1").metadata.annotations, "after an hour a move counts no more"


def test_a_refused_eviction_ends_the_plan_and_the_reservation(cluster: SlicerCluster) -> None:
    large = fragmented(cluster)
    small = cluster.pods["uid-small"]
    cluster.protected.add(small.uid)
    cluster.wait(61)
    assert (evicted(cluster), cluster.slicer.mover.refused) == (["small"], 1)
    assert cluster.slicer.state.reservations == {}
    assert told(cluster, "small")["SliceMoveRefused"] == (
        "Not moved: default/large needs 7g.40gb on node n1, and the eviction of this pod was refused: it would violate"
        " the pod's disruption budget. The pod stays, and is not asked to move again for 60m"
    )
    cluster.protected.clear()
    cluster.wait(61)
    assert evicted(cluster) == ["small"], "not again within an hour"
    cluster.wait(3600)
    assert evicted(cluster) == ["small", "small"]
    assert cluster.where(large)


def test_an_eviction_that_the_server_did_not_answer_is_asked_for_again(cluster: SlicerCluster) -> None:
    """The server is too busy, or the connection breaks: neither is a refusal, after which the pod would rest."""
    large = fragmented(cluster)
    cluster.unanswered.add(cluster.pods["uid-small"].uid)
    cluster.wait(61)
    assert evicted(cluster) == ["small", "small"]
    assert (cluster.slicer.mover.evicted, cluster.slicer.mover.refused) == (1, 0)
    assert list(told(cluster, "small")) == ["SliceMoved"]
    assert cluster.where(large)


def test_the_freed_place_goes_to_the_waiting_pod_and_to_nobody_else(cluster: SlicerCluster) -> None:
    large = fragmented(cluster)
    cluster.pass_time(61)
    cluster.agents()
    cluster.run()
    assert evicted(cluster) == ["small"]
    young = waiting(cluster, "young", "3g.20gb")
    assert [node for node, _, _ in cluster.where(large)] == ["n1"]
    assert [node for node, _, _ in cluster.where(young)] == ["n2"]


def test_a_pod_that_was_moved_does_not_move_again_within_an_hour(cluster: SlicerCluster) -> None:
    large = fragmented(cluster)
    cluster.wait(61)
    start(cluster, large)
    cluster.node("n3")
    running(cluster, "small-2", "1g.5gb", "n3", owner="owner-small")
    second = waiting(cluster, "second", "7g.40gb")
    for restart in (False, True):
        if restart:
            cluster.restart()
        cluster.wait(1000)
        assert (evicted(cluster), cluster.where(second)) == (["small"], [])
    cluster.wait(1600)
    cluster.wait(61)
    assert evicted(cluster) == ["small", "small-2"]
    assert cluster.where(second)


@pytest.mark.parametrize("restart", [False, True])
def test_the_budget_of_an_hour_holds_over_a_restart(restart: bool) -> None:
    cluster = cluster_with(per_hour=1)
    two_rooms(cluster)
    first, _ = (waiting(cluster, name, "7g.40gb", namespace=name) for name in ("a", "b"))
    cluster.wait(61)
    start(cluster, first)
    assert len(evicted(cluster)) == 1
    if restart:
        cluster.restart()
    cluster.wait(3500)
    assert len(evicted(cluster)) == 1
    cluster.wait(101)
    cluster.wait(61)
    assert len(evicted(cluster)) == 2


@pytest.mark.parametrize("restart", [False, True])
def test_the_budget_of_an_hour_holds_if_the_clock_is_set_back(restart: bool) -> None:
    """The next controller's machine is two seconds behind, or the clock of this one is corrected."""
    cluster = cluster_with(per_hour=1)
    two_rooms(cluster)
    first, _ = (waiting(cluster, name, "7g.40gb", namespace=name) for name in ("a", "b"))
    cluster.wait(61)
    start(cluster, first)
    cluster.pass_time(-2)
    if restart:
        cluster.restart()
    cluster.settle()
    for _ in range(3):
        cluster.wait(61)
    assert len(evicted(cluster)) == 1


def test_several_pods_move_one_after_the_other(cluster: SlicerCluster) -> None:
    for node in ("n1", "n2"):
        cluster.node(node)
    pods = [running(cluster, f"small-{number}", "1g.5gb", "n1") for number in range(2)]
    running(cluster, "half", "4g.20gb", "n2", movable=False)
    cluster.pass_time(600)
    large = waiting(cluster, "large", "7g.40gb")
    cluster.protected.add(pods[1].uid)
    cluster.protected.add(pods[0].uid)
    cluster.wait(61)
    assert len(evicted(cluster)) == 1, "the refusal of the first spares the second"
    cluster.protected.clear()
    cluster.wait(3601)
    cluster.wait(61)
    assert sorted(evicted(cluster)[1:]) == ["small-0", "small-1"]
    assert cluster.where(large)


def test_the_largest_budget_fits_into_the_record() -> None:
    uid = "12345678-1234-1234-1234-123456789012"
    text = format_moves(RecordedMove(uid=uid, owner=uid, date=1_800_000_000.123456) for _ in range(400))
    assert text is not None
    assert 47_000 < len(text) <= RECORD_BYTES


@pytest.mark.parametrize(
    "forged",
    [
        msgspec.json.encode([{"uid": "x", "owner": "y", "date": 2e6}] * 100).decode(),
        "[",
        f'[{{"x":{"[" * 30_000}',
        "x" * 70_000,
    ],
    ids=["in the future", "no JSON", "deep", "long"],
)
def test_a_forged_record_is_ignored(cluster: SlicerCluster, forged: str) -> None:
    large = fragmented(cluster)
    assert cluster.date < 1.5e6
    cluster.patch("n2", {"metadata": {"annotations": {MOVES_ANNOTATION: forged}}})
    cluster.restart()
    cluster.wait(61)
    assert evicted(cluster) == ["small"]
    assert cluster.where(large)
