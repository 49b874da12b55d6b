"""Batches: what waits together is packed together, under the scheduler's rules, at a cost that what waits can bear."""

from typing import Any

import pytest
from tests.support.slicer_cluster import SlicerCluster

from tessera.api.names import PodUid
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.slicing.batch_placement import BATCH_RULES, first_batch

#: What one A100-40GB can hold at most, or nearly.
FULL = [
    ["7g.40gb"],
    ["4g.20gb", "3g.20gb"],
    ["3g.20gb", "3g.20gb"],
    ["4g.20gb", "2g.10gb", "1g.5gb"],
    ["4g.20gb", "1g.10gb", "1g.10gb"],
    ["4g.20gb", "1g.5gb", "1g.5gb", "1g.5gb"],
    ["3g.20gb", "2g.10gb", "2g.10gb"],
    ["3g.20gb", "2g.10gb", "1g.10gb"],
    ["2g.10gb", "2g.10gb", "2g.10gb", "1g.10gb"],
    ["2g.10gb", "2g.10gb", "2g.10gb", "1g.5gb"],
    ["1g.10gb", "1g.10gb", "1g.10gb", "1g.10gb"],
    ["2g.10gb", "2g.10gb", "1g.10gb", "1g.5gb", "1g.5gb"],
    ["1g.5gb"] * 7,
    ["3g.20gb", *["1g.5gb"] * 4],
    ["1g.10gb", *["1g.5gb"] * 6],
]


@pytest.mark.parametrize("profiles", FULL, ids=" ".join)
def test_one_pod_may_ask_for_the_whole_card_in_parts(new_cluster: Any, profiles: list[str]) -> None:
    cluster = new_cluster()
    cluster.node("n1")
    pod = cluster.pod("all", *profiles)
    cluster.settle()
    assert sorted(place[1] for place in cluster.where(pod)) == sorted(profiles)
    assert cluster.overlaps() == []


def test_slices_of_a_pod_are_on_one_node(cluster: SlicerCluster) -> None:
    cluster.node("n1")
    cluster.node("n2", count=2)
    pod = cluster.pod("a", "7g.40gb", "7g.40gb")
    cluster.settle()
    assert [place[0] for place in cluster.where(pod)] == ["n2", "n2"]


def test_cards_of_several_models_each_have_their_own_profiles(cluster: SlicerCluster) -> None:
    cluster.node("small", cards="A30")
    cluster.node("big", cards="H100-80GB")
    pods = [cluster.pod("a", "1g.6gb"), cluster.pod("b", "3g.40gb")]
    cluster.settle()
    assert [cluster.where(pod)[0][0] for pod in pods] == ["small", "big"]


def test_pods_beyond_what_can_fit_share_one_reason_and_are_all_told(cluster: SlicerCluster) -> None:
    cluster.node("n1")
    pods = [cluster.pod(f"p{i:02}", "1g.5gb") for i in range(40)]
    cluster.settle()
    assert sum(bool(cluster.where(pod)) for pod in pods) == 7
    assert len(cluster.slicer.state.waiting) == len(cluster.told) == 33
    assert all(one.reason is not None for one in cluster.slicer.state.waiting.values())


def test_every_slot_that_comes_free_is_used_by_the_oldest_that_fits(cluster: SlicerCluster) -> None:
    cluster.node("n1")
    running = [cluster.pod(f"a{i}", "1g.5gb", created="2026-01-01T00:00:00Z") for i in range(7)]
    cluster.settle()
    waiting = [cluster.pod(f"b{i}", "1g.5gb", created=f"2026-01-01T00:01:{59 - i}Z") for i in range(20)]
    cluster.settle()
    for pod in running:
        cluster.remove(pod)
    cluster.settle()
    assert [bool(cluster.where(pod)) for pod in waiting] == [False] * 13 + [True] * 7


def test_priority_counts_among_more_alike_pods_than_could_ever_fit(cluster: SlicerCluster) -> None:
    low = [cluster.pod(f"low{n}", "7g.40gb") for n in range(8)]
    high = cluster.pod("high", "7g.40gb", priority=10)
    cluster.settle()
    cluster.node("n1")
    cluster.settle()
    assert cluster.where(high)
    assert not any(map(cluster.where, low))


def test_what_a_running_pod_holds_counts_once_when_its_record_is_made_anew(cluster: SlicerCluster) -> None:
    cluster.node("n1", count=2, allocatable={"cpu": 2000, "pods": 110})
    runs = cluster.pod("runs", "7g.40gb", gates=(), node="n1")
    waits = cluster.pod("waits", "7g.40gb")
    cluster.settle()
    assert cluster.states(runs) == cluster.states(waits) == ("ungated", "created")


def test_a_batch_ends_where_the_rules_about_other_pods_are_too_many() -> None:
    ports = frozenset(("TCP", "0.0.0.0", number) for number in range(200))
    pods = [PodInfo(uid=PodUid(f"u{i}"), namespace="d", name=f"p{i}", ports=ports) for i in range(9)]
    assert [pod.name for pod in first_batch(pods)] == [f"p{i}" for i in range(BATCH_RULES // 200)]
    assert len(first_batch(pods[:1])) == 1
