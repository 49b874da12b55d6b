"""The work of many updates, restarts and spare slices, in calls of functions, grows no faster than their number."""

import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest
from tests.support.slicer_cluster import SlicerCluster

from tessera.api.names import NodeName
from tessera.controller.objects.pod_info import PodInfo, Workload
from tessera.controller.slicing.slicer import Slicer
from tessera.handover.satellite import HandOverSatellite

#: The share by which the work of each pod may grow where there are four times as many.
_MORE = 1.15


class _UncheckedCluster(SlicerCluster):
    """A cluster whose slicer is not checked after each event, which would be most of the work."""

    def make_slicer(self) -> Slicer:
        return Slicer(self.reserve_after, proposers=[HandOverSatellite().make])

    def fill(self, pods: Iterable[PodInfo]) -> None:
        """All pods with slices run and are ready."""
        self.settle()
        for pod in pods:
            ((node, _, _),) = self.where(pod)
            self.put(replace(self.pods[pod.uid], node=NodeName(node), started=self.date, ready_since=self.date))
        self.settle()
        self.pass_time(60)
        self.settle()


def _full_cluster(nodes: int) -> _UncheckedCluster:
    cluster = _UncheckedCluster()
    cluster.pass_time(0)
    for number in range(nodes):
        cluster.node(f"n{number}", count=8)
    return cluster


def _calls(act: Callable[[], None]) -> int:
    """The calls of functions, built-in ones too, while something is done."""
    count = 0

    def note(_frame: Any, event: str, _arg: Any) -> None:
        nonlocal count
        count += event in {"call", "c_call"}

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        act()
    finally:
        sys.setprofile(before)
    return count


def _update_at_once(count: int) -> int:
    """So many Deployments with one replica each are updated at once, on full cards."""
    cluster = _full_cluster(count // 8)
    names = [f"svc{number}" for number in range(count)]
    for name in names:
        cluster.workloads[f"{name}-1"] = Workload(name, 1, 1, name=name, keeps_old=True)
        cluster.workloads[f"{name}-2"] = Workload(name, 1, 2, name=name, keeps_old=True)

    def pods(revision: int, **facts: Any) -> list[PodInfo]:
        makers = [(f"{name}-{revision}", {"maker": f"ReplicaSet/{name}-{revision}", **facts}) for name in names]
        return [cluster.pod(f"{owner}-a", "7g.40gb", owner=owner, **more) for owner, more in makers]

    cluster.fill(pods(1))
    new = pods(2, hands_over=True)
    calls = _calls(cluster.settle)
    assert all(map(cluster.where, new))
    return calls


def test_the_work_of_many_updates_at_once_grows_as_their_number() -> None:
    few, many = 24, 96
    assert _update_at_once(many) / many < _MORE * _update_at_once(few) / few


def _restart_in_a_loop(count: int, rounds: int = 2) -> int:
    """A StatefulSet of so many replicas is restarted again and again, while another team waits for a slice."""
    cluster = _full_cluster(count // 56)
    cluster.workloads["sts"] = Workload("sts", count)
    batch: PodInfo | None = None
    pods = [cluster.pod(f"r0-{number}", "1g.5gb", maker="StatefulSet/sts", owner="sts") for number in range(count)]
    cluster.fill(pods)
    calls = 0

    def restart(number: int) -> None:
        for pod in pods:
            cluster.put(replace(cluster.pods[pod.uid], terminating=True, gone_by=cluster.date + 30))
        cluster.settle()
        for pod in pods:
            cluster.remove(pod)
        facts = {"maker": "StatefulSet/sts", "owner": "sts"}
        pods[:] = [cluster.pod(f"r{number}-{each}", "1g.5gb", created=f"{number}", **facts) for each in range(count)]
        cluster.settle()

    for number in range(1, rounds + 1):
        batch = batch or cluster.pod("batch", "1g.5gb", maker="Job/batch", owner="batch")
        cluster.settle()
        calls += _calls(lambda number=number: restart(number))  # type: ignore[misc]
        cluster.fill(pods)
        assert not cluster.where(batch)
    return calls


@pytest.mark.soak
def test_the_work_of_replicas_that_restart_in_a_loop_grows_as_their_number() -> None:
    few, many = 56, 224
    assert _restart_in_a_loop(many) / many < _MORE * _restart_in_a_loop(few) / few


def _decide_with_spares(spare: int) -> int:
    """A queue keeps so many slices spare, of which four have slots, while 60 pods wait that may not have them."""
    cluster = _full_cluster(4)
    cluster.made_up = {"made-up"}
    pods = [cluster.pod(f"batch-{number}", "1g.5gb") for number in range(7 * 8 * 4 - 4)]
    cluster.fill(pods)
    cluster.queue("serving", spare={"1g.5gb": spare})
    cluster.settle()
    facts = {"namespace": "serving", "maker": "ReplicaSet/made-up", "owner": "made-up"}
    for number in range(60):
        cluster.pod(f"made-up-{number}", "1g.5gb", **facts)
    cluster.settle()
    assert len(cluster.slicer.state.reservations.spare) == 4
    cluster.pass_time(61)
    cluster.node("n0", count=8)
    return _calls(cluster.settle)


def test_the_work_of_spare_slices_does_not_grow_as_their_number_times_the_waiting_pods() -> None:
    assert _decide_with_spares(64) < _MORE * _decide_with_spares(16)


def _report_queues(count: int) -> int:
    """So many queues with a spare slice each report their status."""
    cluster = _full_cluster(2 * count // 56 + 1)
    for number in range(count):
        cluster.queue(f"team-{number}", spare={"1g.5gb": 1})
    cluster.fill([])
    assert len(cluster.slicer.state.reservations.spare) == count
    cluster.pass_time(3600)
    return _calls(cluster.slicer.pop_writes)


def test_the_work_of_the_status_of_queues_with_spare_slices_grows_as_their_number() -> None:
    few, many = 28, 112
    assert _report_queues(many) / many < _MORE * _report_queues(few) / few
