"""Between two rounds the page follows the pods that wait: who left, who came, and what the last plan said."""

from dataclasses import replace

import pytest
from tests.support.forecast_cluster import ForecastCluster

from tessera.api.names import GATE, NodeName, PodUid
from tessera.controller.objects.pod_constraints import NodeConstraints
from tessera.controller.objects.pod_info import PodInfo
from tessera.forecast.queue import competition
from tessera.forecast.queue_page import ExpectedStart, QueuePage
from tessera.reasons.reason import NoNode

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


def test_positions_count_one_order_and_competitors_stand_beside_them(cluster: ForecastCluster) -> None:
    on_first = [_waits(cluster, f"one-{number}", "n1") for number in range(3)]
    _waits(cluster, "two", "n2")
    _waits(cluster, "both")
    cluster.forecast()
    for pod in on_first[:2]:
        cluster.remove(pod)
    now = _page(cluster)
    assert _positions(now) == [("one-2", 1, 3), ("two", 2, 3), ("both", 3, 3)]
    assert [row.ahead for row in now.pods] == [0, 0, 2]
    assert cluster.forecast().pods == now.pods


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


def test_a_pod_that_another_gate_holds_no_more_says_at_once_what_it_waits_for(cluster: ForecastCluster) -> None:
    """The queue went on to name the gate for up to 15 s."""
    held = cluster.pod("held", WHOLE, gates=("kueue.x-k8s.io/admission", GATE))
    cluster.settle()
    cluster.forecast()
    cluster.put(replace(held, gates=(GATE,)))
    cluster.settle()
    assert [(row.name, row.reason) for row in _page(cluster).pods] == [("held", "full")]


def test_a_new_pod_is_on_the_page_at_once_and_gets_its_place_with_the_next_round(cluster: ForecastCluster) -> None:
    """``tessera why`` said that it waits, and ``tessera queue`` for up to 15 s that no such pod does."""
    _waits(cluster, "first")
    cluster.forecast()
    _waits(cluster, "second")
    now = _page(cluster)
    assert [(row.name, row.reason, row.position) for row in now.pods] == [("first", "full", 1), ("second", "full", 0)]
    assert now.pods[1].why == cluster.slicer.state.pods.reason_of(PodUid("uid-second"))
    assert now.pods[1].start == ExpectedStart()
    assert _page(cluster) is now, "nothing has changed"
    assert _positions(cluster.forecast()) == [("first", 1, 2), ("second", 2, 2)]


def test_a_pod_that_a_later_plan_refuses_for_another_reason_says_that(cluster: ForecastCluster) -> None:
    _waits(cluster, "on-one", "n1")
    cluster.forecast()
    cluster.slicer.state.pods.waiting[PodUid("uid-on-one")].reason = NoNode(())
    (row,) = _page(cluster).pods
    assert (row.reason, row.why, row.position, row.start.p50) == ("no-node", NoNode(()), 0, None)


def test_of_a_replica_that_does_not_lead_nothing_is_added(cluster: ForecastCluster) -> None:
    _waits(cluster, "first")
    assert _page(cluster) == QueuePage()
