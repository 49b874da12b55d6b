"""Pods that stay beyond their deadline are ended, whatever grace period their deletion has."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.slicer_cluster import SlicerCluster

from tessera.api.names import NodeName
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.slicing.proposers.late_pods import ASKED_AGAIN, overstays_from
from tessera.controller.slicing.state.instructions import Evict
from tessera.controller.slicing.state.reservation_rules import BACKFILL_MARGIN

START = 1_000_000.0
#: A deadline of 60 s with a grace period of 5 s.
DEADLINE, GRACE = 65.0, 5.0


def running(cluster: SlicerCluster, **facts: Any) -> PodInfo:
    """A pod with a deadline that has just started on its slices."""
    cluster.node("n1")
    cluster.pass_time(0)
    pod = cluster.pod("a", "3g.20gb", deadline=DEADLINE, grace=GRACE)
    cluster.settle()
    return change(cluster, pod, node=NodeName("n1"), started=cluster.date, **facts)


def change(cluster: SlicerCluster, pod: PodInfo, **facts: Any) -> PodInfo:
    changed: PodInfo = cluster.put(replace(cluster.pods[pod.uid], version=len(cluster.writes) + 1, **facts))
    cluster.settle()
    return changed


def evictions(cluster: SlicerCluster) -> list[int | None]:
    """The grace of each eviction that is due now; the pods stay."""
    cluster.slicer.decide()
    found = [each for each in cluster.slicer.pop_writes() if isinstance(each, Evict)]
    for each in found:
        cluster.unanswered.add(each.uid)
        cluster.answer(each)
    return [each.grace for each in found]


@pytest.mark.parametrize(
    ("facts", "due"),
    [
        ({}, START + DEADLINE + BACKFILL_MARGIN),
        ({"terminating": True, "gone_by": START + 86_400}, START + 60),
        ({"terminating": True, "gone_by": START + DEADLINE}, None),
        ({"terminating": True, "gone_by": START + 86_400, "grace": 40.0, "deadline": 100.0}, START + 60),
        ({"terminating": True, "gone_by": START + 86_400, "finished": True}, None),
        ({"terminating": True, "gone_by": START + 86_400, "deadline": None}, None),
        ({"terminating": True, "gone_by": START + 86_400, "started": 0.0}, None),
        ({"terminating": True, "gone_by": START + 86_400, "node": NodeName("")}, None),
    ],
    ids=["runs", "a day's grace", "its own grace", "long grace", "ended", "no deadline", "not started", "unbound"],
)
def test_when_a_pod_stays_too_long(facts: dict[str, Any], due: float | None) -> None:
    pod = PodInfo("u", "team", "a", node="n1", deadline=DEADLINE, grace=GRACE, started=START)  # type: ignore[arg-type]
    assert overstays_from(replace(pod, **facts)) == due


def test_a_pod_whose_deletion_outlasts_its_deadline_is_evicted_at_the_deadline_with_its_own_grace() -> None:
    cluster = SlicerCluster()
    pod = running(cluster)
    change(cluster, pod, terminating=True, gone_by=cluster.date + 86_400)
    cluster.pass_time(59)
    assert evictions(cluster) == []
    cluster.pass_time(1)
    assert evictions(cluster) == [5]
    assert [each.reason for each in cluster.slicer.state.events] == []
    change(cluster, pod, gone_by=cluster.date + GRACE)
    cluster.pass_time(600)
    assert evictions(cluster) == []


def test_a_pod_that_stays_is_asked_again_once_a_minute_however_often_it_changes() -> None:
    cluster = SlicerCluster()
    pod = running(cluster)
    change(cluster, pod, terminating=True, gone_by=cluster.date + 86_400)
    cluster.pass_time(60)
    found = 0
    for number in range(60):
        cluster.put(replace(cluster.pods[pod.uid], version=1_000 + number, labels=(("n", str(number)),)))
        found += len(evictions(cluster))
        cluster.pass_time(ASKED_AGAIN / 20)
    assert found == 3


def test_a_new_controller_ends_the_pod_too() -> None:
    cluster = SlicerCluster()
    pod = running(cluster)
    change(cluster, pod, terminating=True, gone_by=cluster.date + 86_400)
    cluster.pass_time(600)
    cluster.restart()
    assert evictions(cluster) == [5]


def test_a_pod_without_slots_is_left_alone() -> None:
    cluster = SlicerCluster()
    cluster.pass_time(0)
    cluster.pod("plain", gates=(), node=NodeName("n1"), deadline=DEADLINE, started=cluster.date)
    cluster.settle()
    cluster.pass_time(86_400)
    assert evictions(cluster) == []


@given(
    active=st.integers(1, 10_000),
    grace=st.integers(0, 10_000),
    deleted=st.integers(0, 20_000),
    chosen=st.integers(0, 10**9),
)
def test_nobody_chooses_a_grace_that_outlasts_the_deadline(active: int, grace: int, deleted: int, chosen: int) -> None:
    """Kubelet kills a pod at the end of its deletion; else the eviction gives it its own grace from the deadline on."""
    pod = PodInfo("u", "team", "a", node="n1", deadline=float(active + grace), grace=float(grace), started=START)  # type: ignore[arg-type]
    gone_by = START + deleted + chosen
    due = overstays_from(replace(pod, terminating=True, gone_by=gone_by))
    killed = gone_by if due is None else max(due, START + deleted) + max(1, grace)
    assert killed <= max(START + active, START + deleted) + max(1, grace)
