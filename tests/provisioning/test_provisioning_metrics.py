from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from tessera.provisioning.milestones import Milestone, ProvisioningRecord, WorkloadRecord, WorkloadStep
from tessera.provisioning.recording import METRIC_COMBINATIONS, ProvisioningMetrics

M = Milestone
PHASE = "tessera_provisioning_phase_seconds"
RECORD = ProvisioningRecord(
    node="n",
    uid="u",
    strategy="built",
    pool="p",
    image="quay.io/x/driver@sha256:" + "0123456789abcdef" * 4,
    at={M.REGISTERED: 100.0, M.READY: 110.0, M.LABELLED: 110.0, M.PULLED: 150.0, M.ALLOCATABLE: 300.0},
)
LABELS = {"pool": "p", "strategy": "built", "image": "driver@0123456789ab"}


class Counted:
    """A registry and what is read from it."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.metrics = ProvisioningMetrics(self.registry)

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)

    def phase(self, phase: str, **more: str) -> tuple[float | None, float | None]:
        """Returns how many times a phase was counted, and its sum."""
        labels = {**LABELS, **more, "phase": phase}
        return self.value(f"{PHASE}_count", **labels), self.value(f"{PHASE}_sum", **labels)


@pytest.fixture
def counted() -> Counted:
    return Counted()


def test_known_phases_are_counted_and_unknown_ones_are_not(counted: Counted) -> None:
    counted.metrics.observe_record(RECORD, None)
    assert counted.phase("ready") == (1, 10)
    assert counted.phase("pulled") == (1, 40)
    assert counted.phase("total-startup") == (1, 200)
    for unknown in ("vm", "driver", "allocatable", "total"):
        assert counted.phase(unknown) == (None, None)


def test_a_phase_is_counted_once_also_if_others_become_known_later(counted: Counted) -> None:
    later = msgspec.structs.replace(RECORD, at={**RECORD.at, M.WORKLOAD: 320.0})
    counted.metrics.observe_record(RECORD, None)
    counted.metrics.observe_record(later, RECORD)
    assert counted.phase("ready") == (1, 10)
    assert counted.phase("workload") == (1, 20)


def test_others_names_make_a_bounded_number_of_series(counted: Counted) -> None:
    for number in range(METRIC_COMBINATIONS + 20):
        counted.metrics.observe_record(msgspec.structs.replace(RECORD, uid=f"u{number}", pool=f"p{number}"), None)
    assert counted.phase("ready", pool="other", strategy="other", image="other") == (20, 200)


def test_nodes_that_were_lost_are_counted(counted: Counted) -> None:
    counted.metrics.observe_record(msgspec.structs.replace(RECORD, lost=900.0), RECORD)
    assert counted.value("tessera_provisioning_lost_nodes_total", strategy="built") == 1


@pytest.mark.parametrize(
    ("fresh", "at", "step", "count"),
    [
        (
            True,
            {
                WorkloadStep.CREATED: 0,
                WorkloadStep.SCALED_UP: 2,
                WorkloadStep.BOUND: 100,
                WorkloadStep.PULLED: 105,
                WorkloadStep.STARTED: 106,
            },
            "bound",
            98,
        ),
        (False, {WorkloadStep.CREATED: 0, WorkloadStep.BOUND: 1, WorkloadStep.STARTED: 6}, "started", 5),
    ],
)
def test_steps_of_pods_are_counted_apart_for_new_nodes(
    counted: Counted, fresh: bool, at: Any, step: str, count: float
) -> None:
    pod = WorkloadRecord(namespace="a", name="b", uid="c", node="n", fresh=fresh, at=at, strategy="built")
    counted.metrics.observe_workload(pod)
    labels = {"step": step, "node": "new" if fresh else "there", "strategy": "built"}
    assert counted.value("tessera_provisioning_workload_seconds_sum", **labels) == count
