"""Metrics of the fleet: slots, room and fragmentation follow the cards, waiting pods their reasons."""

import pytest
from prometheus_client import CollectorRegistry
from tests.support.slicer_cluster import SlicerCluster

from tessera.clock import LoopClock
from tessera.controller.main.fleet_metrics import REASONS, FleetCollector
from tessera.placement.demand import Reason

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


def test_slots_and_room_follow_the_cards() -> None:
    cluster = SlicerCluster()
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


def test_waiting_pods_are_counted_by_reason() -> None:
    cluster = SlicerCluster()
    cluster.node("n1", count=1)
    cluster.pod("first", "7g.40gb")
    cluster.run()
    cluster.pod("second", "7g.40gb")
    cluster.run()
    assert value(cluster, "tessera_pods_waiting", reason="full") == 1
    assert value(cluster, "tessera_pods_waiting", reason="fragmented") == 0


def test_a_replica_that_does_not_lead_shows_nothing() -> None:
    assert list(FleetCollector(lambda: None, FixedClock(0.0)).collect()) == []


def test_each_reason_has_a_label() -> None:
    assert set(Reason.__args__) | {type(None)} == REASONS.keys()
