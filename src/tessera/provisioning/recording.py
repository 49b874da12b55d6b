"""Writes provisioning records: the history to a ConfigMap, each node's record to its annotation, pods' pull times.

- The history is in the ConfigMap ``provisioning-records``: read once, written soon after a change. Only the leader
  writes it, and it replaces the content. Unreadable lines are set aside within the ConfigMap and reported in an Event.
- A node's annotation has its record, for readers and for the next controller. Changes of a node are gathered for
  :data:`SETTLE` seconds. A failed write is repeated with the newest record.
- If a node was created for a pod, the pod's record has the time of its image pull. Only kubelet's Events hold that
  time, and a query for one pod makes the server scan all Events of the namespace. So it is sent only for pods with a
  new node, one after the other. Without an Event the time stays unknown.

A :class:`ProvisioningMetrics` shows the phases as Prometheus histograms.

Rules:

- A phase is counted once: when a record enters the history, or when one of its phases becomes known there.
- An unknown phase is not counted, so the count of a phase shows how often it is known.
- Labels come from objects that others write, so their combinations are limited (`METRIC_COMBINATIONS`); further ones
  count as ``other``.
"""

import asyncio
import logging
from collections.abc import Iterable

import msgspec
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from tessera.api.nodes.node_marks import DriverStrategy
from tessera.kube.client import Client
from tessera.kube.errors import ApiError, Conflict, NotFound
from tessera.kube.event_recorder import EventRecorder, make_reference
from tessera.kube.leader_election import KubeRuntime
from tessera.kube.persistent_config_map import PersistentConfigMap
from tessera.kube.resources import CONFIGMAPS, EVENTS, NODES
from tessera.kube.retries import Backoff
from tessera.provisioning.history import BROKEN_KEY, RECORDS_NAME, ProvisioningHistory, encode_record
from tessera.provisioning.milestones import (
    PROVISIONING_ANNOTATION,
    ROUNDED,
    TOTALS,
    ProvisioningRecord,
    WorkloadRecord,
    WorkloadStep,
    node_phases,
    span_seconds,
    workload_steps,
)
from tessera.provisioning.timestamps import parse_time
from tessera.provisioning.tracker import Tracker

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


_log = logging.getLogger(__name__)


class HistoryStore:
    """Reads and writes the history in the cluster.

    Args:
        runtime: see :class:`~tessera.kube.leader_election.KubeRuntime`.
        namespace: namespace of the ConfigMap.
        most: maximum number of nodes' records, and of pods'.
        events: writes events about unreadable lines.

    Attributes:
        history: the history.
    """

    def __init__(
        self,
        runtime: KubeRuntime,
        *,
        namespace: str,
        most: int,
        events: EventRecorder,
    ) -> None:
        self.history = ProvisioningHistory(most)
        self._namespace = namespace
        self._events = events
        self._map = PersistentConfigMap(
            runtime.client,
            runtime.clock,
            namespace=namespace,
            name=RECORDS_NAME,
            data=self.history.config_map_data,
            rng=runtime.rng,
            may_act=runtime.may_act,
        )

    async def load(self) -> None:
        """Reads the ConfigMap; retries until the server answers. Without the right to read it starts empty."""
        self._report_faults(self.history.load(await self._map.load()))

    def request_write(self) -> None:
        """Requests a write of the history."""
        self._map.mark_changed()

    async def run(self) -> None:
        """Writes changes until cancelled."""
        await self._map.run()

    async def flush(self) -> None:
        """Writes now.

        Raises:
            ConnectionError: the server gave no answer, or this replica does not lead any more.
            ApiError: the server refused.
        """
        await self._map.flush()

    def _report_faults(self, faults: list[str]) -> None:
        if not faults:
            return
        text = f"{len(faults)} records cannot be read and are set aside under {BROKEN_KEY}; the first: {faults[0]}"
        _log.warning("ConfigMap %s/%s: %s", self._namespace, RECORDS_NAME, text)
        about = make_reference(CONFIGMAPS, RECORDS_NAME, self._namespace)
        self._events.record(about, "RecordsUnreadable", text, type="Warning")
        self._map.mark_changed()


#: Seconds for which changes of a record are collected before the node is annotated.
SETTLE = 1.0


class NodeAnnotator:
    """Writes records to nodes' annotations.

    Args:
        runtime: see :class:`~tessera.kube.leader_election.KubeRuntime`.
        tracker: has the records, and the names of those that changed.
        metrics: counts failed writes.
    """

    def __init__(
        self,
        runtime: KubeRuntime,
        *,
        tracker: Tracker,
        metrics: ProvisioningMetrics,
    ) -> None:
        self._client = runtime.client
        self._clock = runtime.clock
        self._tracker = tracker
        self._metrics = metrics
        self._may_act = runtime.may_act
        self._backoff = Backoff(runtime.rng)
        self._changed = asyncio.Event()

    def wake(self) -> None:
        """Checks for changed records after an observation."""
        if self._tracker.changed:
            self._changed.set()

    async def run(self) -> None:
        """Writes until cancelled."""
        while True:
            await self._changed.wait()
            await self._clock.sleep(SETTLE)
            self._changed.clear()
            names, self._tracker.changed = self._tracker.changed, set()
            failed = {name for name in sorted(names) if not await self._annotate(name)}
            if failed:
                self._tracker.changed |= failed
                self._changed.set()
                await self._clock.sleep(self._backoff.next())
            else:
                self._backoff.reset()

    async def _annotate(self, name: str) -> bool:
        """Writes a node's record; returns True if nothing is left to write."""
        record = self._tracker.records.get(name)
        if record is None:
            return True
        if not self._may_act():
            return False
        patch = {"metadata": {"annotations": {PROVISIONING_ANNOTATION: encode_record(record)}}}
        try:
            await self._client.merge_patch(NODES, name, patch, uid=record.uid)
        except (NotFound, Conflict):
            return True  # the node is gone, or replaced by another of its name
        except (ApiError, ConnectionError, TimeoutError) as error:
            self._metrics.write_failed("annotation")
            _log.info("node %s: its record cannot be written, it is tried again: %s", name, error)
            return False
        return True


class WorkloadRecorder:
    """Keeps the records of pods that started.

    Args:
        client: reads Events.
        store: the history of records.
        metrics: the metrics.

    Attributes:
        started: the records to keep, each once.
    """

    def __init__(self, client: Client, *, store: HistoryStore, metrics: ProvisioningMetrics) -> None:
        self._client = client
        self._store = store
        self._metrics = metrics
        self.started: asyncio.Queue[WorkloadRecord] = asyncio.Queue(maxsize=200)

    async def run(self) -> None:
        """Stores records until cancelled."""
        while True:
            record = await self.started.get()
            if record.fresh:
                record = await self._with_pull(record)
            if self._store.history.workloads.put(record):
                self._metrics.observe_workload(record)
                self._store.request_write()

    async def _with_pull(self, record: WorkloadRecord) -> WorkloadRecord:
        fields = f"involvedObject.uid={record.uid},reason=Pulled"
        try:
            found = (await self._client.list(EVENTS, record.namespace, field_selector=fields)).items
        except (ApiError, ConnectionError, TimeoutError):
            return record
        times = [parse_time(each.first_timestamp) or parse_time(each.event_time) for each in found]
        started = record.at[WorkloadStep.STARTED]
        before = [each for each in times if each is not None and each <= started + ROUNDED]
        if not before:
            return record
        return msgspec.structs.replace(record, at={**record.at, WorkloadStep.PULLED: min(max(before), started)})
