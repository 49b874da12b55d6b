"""Phases as Prometheus histograms.

Rules:

- A phase is counted once: when a record enters the history, or when one of its phases becomes known there.
- An unknown phase is not counted, so the count of a phase shows how often it is known.
- Labels come from objects that others write, so their combinations are limited (`METRIC_COMBINATIONS`); further ones
  count as ``other``.
"""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from tessera.api.nodes.driver_status import DriverStrategy
from tessera.provisioning.milestones import ProvisioningRecord, WorkloadRecord
from tessera.provisioning.phases import TOTALS, node_phases, span_seconds, workload_steps

#: Most combinations of pool, strategy and image in provisioning metrics; others count as `other`. Each has a histogram
#: for every phase; the names come from others.
METRIC_COMBINATIONS = 64

#: Buckets in seconds: from a marker file that is seen at once to a node that nobody would wait for any longer.
BUCKETS = (1, 2, 5, 10, 15, 20, 30, 45, 60, 90, 120, 150, 180, 240, 300, 420, 600, 900, 1200, 1800)
#: Characters of a label's value: enough to tell pools and images apart.
_LABEL = 80
_OTHER = ("other", "other", "other")


class ProvisioningMetrics:
    """Metrics of provisioning.

    Args:
        registry: the process's metrics registry.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._phases = Histogram(
            "tessera_provisioning_phase_seconds",
            "Phases of nodes on their way to usable cards; total and total-* are sums of phases.",
            ["phase", "pool", "strategy", "image"],
            buckets=BUCKETS,
            registry=registry,
        )
        self._workloads = Histogram(
            "tessera_provisioning_workload_seconds",
            "Steps of pods that ask for cards, from their creation to their first container's start.",
            ["step", "node", "strategy"],
            buckets=BUCKETS,
            registry=registry,
        )
        self._lost = Counter(
            "tessera_provisioning_lost_nodes",
            "Nodes that went away before their cards could be used.",
            ["strategy"],
            registry=registry,
        )
        for strategy in DriverStrategy:
            self._lost.labels(strategy.value)  # a rate has no value for a series that begins with 1
        self._taints = Counter(
            "tessera_startup_taints_removed", "Startup taints removed from nodes that had started.", registry=registry
        )
        self._overdue = Counter(
            "tessera_startup_overdue_nodes",
            "Nodes that did not offer their cards at the deadline.",
            ["reason"],
            registry=registry,
        )
        self._replaced = Counter("tessera_replaced_nodes", "Nodes whose replacement was requested.", registry=registry)
        self._under_way = Gauge("tessera_provisioning_nodes", "Nodes on their way to usable cards.", registry=registry)
        self._failures = Counter(
            "tessera_provisioning_write_failures", "Writes of provisioning that failed.", ["kind"], registry=registry
        )
        self._combinations: set[tuple[str, str, str]] = set()

    def observe_record(self, record: ProvisioningRecord, before: ProvisioningRecord | None) -> None:
        """Counts a record that entered the history, or replaced an older version ``before``."""
        old = _durations(before) if before is not None else {}
        labels = self._bound_labels((record.pool or "unknown", record.strategy or "unknown", record.short_image))
        for phase, seconds in _durations(record).items():
            if seconds is not None and old.get(phase) is None:
                self._phases.labels(phase, *labels).observe(seconds)
        if record.lost is not None and (before is None or before.lost is None):
            self._lost.labels(labels[1]).inc()

    def observe_workload(self, record: WorkloadRecord) -> None:
        """Counts a pod's record that entered the history."""
        node = "new" if record.fresh else "there"
        for step, seconds in workload_steps(record).items():
            if seconds is not None:
                self._workloads.labels(step.value, node, record.strategy or "unknown").observe(seconds)

    def taint_removed(self) -> None:
        """Counts a removed startup taint."""
        self._taints.inc()

    def expect_reasons(self, reasons: Iterable[str]) -> None:
        """Shows these reasons of overdue nodes as 0: a rate has no value for a series that begins with 1."""
        for reason in reasons:
            self._overdue.labels(reason)

    def overdue(self, reason: str) -> None:
        """Counts a node that was reported overdue."""
        self._overdue.labels(reason).inc()

    def count_replaced(self) -> None:
        """Counts a node whose replacement was requested."""
        self._replaced.inc()

    def set_nodes_in_progress(self, nodes: int) -> None:
        """Sets the number of nodes that are starting."""
        self._under_way.set(nodes)

    def write_failed(self, kind: str) -> None:
        """Counts a failed write."""
        self._failures.labels(kind).inc()

    def _bound_labels(self, labels: tuple[str, str, str]) -> tuple[str, str, str]:
        short = (labels[0][:_LABEL], labels[1][:_LABEL], labels[2][:_LABEL])
        if short not in self._combinations:
            if len(self._combinations) >= METRIC_COMBINATIONS:
                return _OTHER
            self._combinations.add(short)
        return short


def _durations(record: ProvisioningRecord) -> dict[str, float | None]:
    phases = {milestone.value: seconds for milestone, seconds in node_phases(record).seconds.items()}
    return phases | {name: span_seconds(record, part) for name, part in TOTALS.items()}
