"""Between two rounds the page leaves out pods that wait no more, and counts positions without them."""

from dataclasses import replace

import pytest
from tests.support.forecast_cluster import ForecastCluster

from tessera.api.names import GATE, NodeName
from tessera.controller.objects.pod_constraints import NodeConstraints
from tessera.controller.objects.pod_info import PodInfo
from tessera.forecast.queue import competition
from tessera.forecast.queue_page import QueuePage

WHOLE = "7g.40gb"


@pytest.fixture
def cluster() -> ForecastCluster:
    found = ForecastCluster()
    for name in ("n1", "n2"):
        found.node(name)
        found.submit(f"holder-{name}", WHOLE)
    return found


def _waits(cluster: ForecastCluster, name: str, node: str = "") -> PodInfo:
    cluster.now += 1
    selector = (("kubernetes.io/hostname", node),) if node else ()
    return cluster.submit(name, WHOLE, constraints=NodeConstraints(selector=selector))


def _positions(page: QueuePage) -> list[tuple[str, int, int]]:
    return [(row.name, row.position, row.of) for row in page.pods]


def _page(cluster: ForecastCluster) -> QueuePage:
    return cluster.forecaster.current.read(cluster.slicer.state)


def test_deleted_pods_leave_the_page_at_once_and_the_others_move_up(cluster: ForecastCluster) -> None:
    """The page showed them until the next round, and positions such as 35 of 694 for those that were left."""
    pods = [_waits(cluster, f"p{number}") for number in range(7)]
    cluster.forecast()
    for pod in pods[1:5]:
        cluster.remove(pod)
    assert _positions(_page(cluster)) == [("p0", 1, 3), ("p5", 2, 3), ("p6", 3, 3)]
    cluster.settle()
    now = _page(cluster)
    assert _positions(now) == [("p0", 1, 3), ("p5", 2, 3), ("p6", 3, 3)]
    assert _positions(cluster.forecast()) == _positions(now), "as the next round counts"


def test_a_pod_that_has_its_slices_leaves_the_page(cluster: ForecastCluster) -> None:
    _waits(cluster, "first")
    _waits(cluster, "second")
    cluster.forecast()
    cluster.end(cluster.pods["uid-holder-n1"])
    assert _positions(_page(cluster)) == [("second", 1, 1)]


def test_only_competitors_count(cluster: ForecastCluster) -> None:
    on_first = [_waits(cluster, f"one-{number}", "n1") for number in range(3)]
    _waits(cluster, "two", "n2")
    _waits(cluster, "both")
    cluster.forecast()
    for pod in on_first[:2]:
        cluster.remove(pod)
    assert _positions(_page(cluster)) == [("one-2", 1, 2), ("two", 1, 2), ("both", 3, 3)]
    assert _positions(cluster.forecast()) == [("one-2", 1, 2), ("two", 1, 2), ("both", 3, 3)]


def test_pods_of_very_many_kinds_leave_and_the_positions_wait_for_the_next_round(
    cluster: ForecastCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(competition, "_KINDS", 0)
    first = _waits(cluster, "first")
    _waits(cluster, "second")
    cluster.forecast()
    cluster.remove(first)
    assert _positions(_page(cluster)) == [("second", 2, 2)]


def test_a_deleted_pod_that_another_gate_holds_leaves_the_page(cluster: ForecastCluster) -> None:
    held = cluster.pod("held", WHOLE, gates=("kueue.x-k8s.io/admission", GATE))
    cluster.settle()
    assert [row.name for row in cluster.forecast().pods] == ["held"]
    cluster.put(replace(held, node=NodeName("")))
    assert [row.name for row in _page(cluster).pods] == ["held"]
    cluster.remove(held)
    assert _page(cluster).pods == ()
