"""Metrics of the fleet: slots, room and fragmentation follow the cards, waiting pods their reasons."""

from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry
from tests.support.slicer_cluster import SlicerCluster

from tessera.api.names import QUOTA_RESOURCE
from tessera.clock import LoopClock
from tessera.controller.leader_session import HandOvers
from tessera.controller.main import NAMESPACES_SHOWN, REASONS, FleetCollector
from tessera.controller.slicing.cycle import take_in
from tessera.controller.slicing.state.events import NodeObserved
from tessera.reasons.reason import Refusal

GIB = 1 << 30
MODEL = "NVIDIA A100-SXM4-40GB"


class FixedClock(LoopClock):
    """A clock that stands still."""

    def __init__(self, now: float) -> None:
        self._fixed = now

    def now(self) -> float:
        return self._fixed


def value(cluster: SlicerCluster, name: str, **labels: str) -> float | None:
    registry = CollectorRegistry()
    registry.register(FleetCollector(lambda: cluster.slicer, FixedClock(0.0)))
    return registry.get_sample_value(name, labels)


@pytest.fixture
def cluster() -> SlicerCluster:
    return SlicerCluster()


def test_slots_and_room_follow_the_cards(cluster: SlicerCluster) -> None:
    cluster.node("n1", count=2)
    cluster.run()
    assert value(cluster, "tessera_slots", model=MODEL, state="free") == 16
    assert value(cluster, "tessera_free_slices", model=MODEL, profile="7g.40gb") == 2
    assert value(cluster, "tessera_fragmentation_ratio", model=MODEL) == pytest.approx(0.0, abs=0.2)
    cluster.pod("web", "3g.20gb")
    cluster.run()
    assert value(cluster, "tessera_slots", model=MODEL, state="held") == 4
    assert value(cluster, "tessera_slots", model=MODEL, state="free") == 12
    assert value(cluster, "tessera_free_slices", model=MODEL, profile="7g.40gb") == 1
    assert value(cluster, "tessera_free_slices", model=MODEL, profile="3g.20gb") == 2


def test_while_changes_are_taken_in_by_parts_the_figures_are_those_of_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(take_in, "ABSORBED_CHANGES", 4)
    cluster = SlicerCluster()
    collector = FleetCollector(lambda: cluster.slicer, FixedClock(0.0))
    registry = CollectorRegistry()
    registry.register(collector)

    def figures() -> tuple[float | None, float | None]:
        slots = registry.get_sample_value("tessera_slots", {"model": MODEL, "state": "free"})
        return slots, registry.get_sample_value("tessera_slices_promised")

    for number in range(12):
        cluster.node(f"n{number:02}")
    pods = [cluster.pod(f"p{number}", "7g.40gb") for number in range(3)]
    seen = [figures()]
    while not cluster.slicer.is_caught_up:
        cluster.slicer.decide()
        seen.append(figures())
    assert len(seen) > 3
    assert set(seen[:-1]) == {(None, None)}, "a new leader shows nothing until it knows all nodes"
    cluster.settle()
    assert figures() == (9 * 8, 3)
    for pod in pods:
        cluster.remove(pod)
    for number in range(12, 24):
        cluster.node(f"n{number:02}")
    cluster.slicer.decide()
    assert not cluster.slicer.is_caught_up
    assert figures() == (9 * 8, 3)
    cluster.settle()
    assert figures() == (24 * 8, 0)


def test_waiting_pods_are_counted_by_reason(cluster: SlicerCluster) -> None:
    cluster.node("n1", count=1)
    cluster.pod("first", "7g.40gb")
    cluster.run()
    cluster.pod("second", "7g.40gb")
    cluster.run()
    assert value(cluster, "tessera_pods_waiting", reason="full") == 1
    assert value(cluster, "tessera_pods_waiting", reason="fragmented") == 0


def test_slices_are_counted_by_profile_and_progress(cluster: SlicerCluster) -> None:
    cluster.node("n1", count=1)
    web = cluster.pod("web", "3g.20gb")
    cluster.settle()
    created = {"profile": "3g.20gb", "state": "created"}
    assert value(cluster, "tessera_allocated_slices", **created) == 1
    cluster.remove(web)
    cluster.settle()
    assert value(cluster, "tessera_allocated_slices", **created) is None


def test_pods_are_charged_by_namespace_and_nodes_have_the_capacity(cluster: SlicerCluster) -> None:
    node = cluster.node("n1", count=1)
    cluster.node("n1", count=1, allocatable={**node.allocatable, QUOTA_RESOURCE: 40 * GIB})
    cluster.pod("web", "3g.20gb", amounts={QUOTA_RESOURCE: 20 * GIB})
    cluster.pod("waits", "7g.40gb", amounts={QUOTA_RESOURCE: 40 * GIB})
    cluster.run()
    assert value(cluster, "tessera_quota_used_bytes", namespace="default") == 60 * GIB
    assert value(cluster, "tessera_quota_capacity_bytes") == 40 * GIB


def test_only_the_largest_namespaces_have_series_of_their_own(cluster: SlicerCluster) -> None:
    for number in range(NAMESPACES_SHOWN + 2):
        amounts = {QUOTA_RESOURCE: GIB * (number + 1)}
        cluster.put(replace(cluster.pod(f"p{number}", "1g.5gb", amounts=amounts), namespace=f"team-{number}"))
    cluster.run()
    assert value(cluster, "tessera_quota_used_bytes", namespace="other") == 3 * GIB
    assert value(cluster, "tessera_quota_used_bytes", namespace="team-1") is None
    assert value(cluster, "tessera_quota_used_bytes", namespace="team-2") == 3 * GIB


def test_a_refusal_counts_once_for_each_reason(cluster: SlicerCluster) -> None:
    cluster.node("n1", count=1)
    cluster.pod("first", "7g.40gb")
    cluster.run()
    cluster.pod("second", "7g.40gb")
    cluster.run()
    cluster.node("n2", cards="A30")
    cluster.run()
    assert value(cluster, "tessera_placement_refusals_total", reason="full") == 1
    assert value(cluster, "tessera_placement_refusals_total", reason="fragmented") == 0


def test_a_pod_that_gets_slices_elsewhere_counts_as_moved(cluster: SlicerCluster) -> None:
    """Its node stops to offer slices before the pod was pinned to it."""
    node = cluster.node("n1", count=1)
    cluster.pod("web", "3g.20gb")
    cluster.slicer.decide()
    assert value(cluster, "tessera_moves_total") == 0
    cluster.slicer.handle(NodeObserved(replace(node, cordoned=True)))
    cluster.node("n2", count=1)
    cluster.run()
    assert [each.node for each in cluster.slicer.state.allocations] == ["n2"]
    assert value(cluster, "tessera_moves_total") == 1


def test_a_hand_over_lasts_from_the_decision_until_the_gate_is_removed(cluster: SlicerCluster) -> None:
    """A pod that finds room at once is none; one that loses its place before that is none either."""
    found: list[float] = []
    hand_overs = HandOvers(found.append)
    cluster.node("n1", count=1)
    first = cluster.pod("first", "7g.40gb")
    cluster.run()
    hand_overs.update(cluster.slicer.state, 1.0)
    cluster.pod("second", "7g.40gb")
    cluster.run()
    cluster.remove(first)
    settle(cluster, hand_overs, 20.0)
    assert found == []
    cluster.run()
    hand_overs.update(cluster.slicer.state, 20.5)
    assert found == [0.5]
    hand_overs.update(cluster.slicer.state, 21.0)
    assert found == [0.5]


def settle(cluster: SlicerCluster, hand_overs: HandOvers, now: float) -> None:
    """Writes until the waiting pod has slices, and no further."""
    for _ in range(100):
        cluster.slicer.decide()
        if cluster.slicer.state.pods.handed_over:
            break
        for instruction in cluster.slicer.pop_writes():
            cluster.answer(instruction)
    hand_overs.update(cluster.slicer.state, now)


def test_a_replica_that_does_not_lead_shows_nothing() -> None:
    assert list(FleetCollector(lambda: None, FixedClock(0.0)).collect()) == []


def test_each_reason_has_a_label() -> None:
    assert set(Refusal.__args__) | {type(None)} == REASONS.keys()
    assert len(set(REASONS.values())) == len(REASONS)
