"""Writes provisioning records: the history to a ConfigMap, each node's record to its annotation, pods' pull times.

- The history is in the ConfigMap ``provisioning-records``: read once, written soon after a change. Only the leader
  writes it, and it replaces the content. Unreadable lines are set aside within the ConfigMap and reported in an Event.
- A node's annotation has its record, for readers and for the next controller. Changes of a node are gathered for
  :data:`SETTLE` seconds. A failed write is repeated with the newest record.
- If a node was created for a pod, the pod's record has the time of its image pull. Only kubelet's Events hold that
  time, and a query for one pod makes the server scan all Events of the namespace. So it is sent only for pods with a
  new node, one after the other. Without an Event the time stays unknown.
"""

import asyncio
import logging
from collections import deque

import msgspec

from tessera.kube.backoff import Backoff
from tessera.kube.client.client import Client
from tessera.kube.client.errors import ApiError, Conflict, NotFound
from tessera.kube.event_recorder import EventRecorder, make_reference
from tessera.kube.persistent_config_map import PersistentConfigMap
from tessera.kube.resources import CONFIGMAPS, EVENTS, NODES
from tessera.kube.runtime import KubeRuntime
from tessera.provisioning.history import BROKEN_KEY, RECORDS_NAME, ProvisioningHistory, encode_record
from tessera.provisioning.metrics import ProvisioningMetrics
from tessera.provisioning.milestones import PROVISIONING_ANNOTATION, WorkloadRecord, WorkloadStep
from tessera.provisioning.phases import ROUNDED
from tessera.provisioning.tracking.timestamps import parse_time
from tessera.provisioning.tracking.tracker import Tracker

_log = logging.getLogger(__name__)


class HistoryStore:
    """Reads and writes the history in the cluster.

    Args:
        runtime: see :class:`~tessera.kube.runtime.KubeRuntime`.
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
        runtime: see :class:`~tessera.kube.runtime.KubeRuntime`.
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
    """

    def __init__(self, client: Client, *, store: HistoryStore, metrics: ProvisioningMetrics) -> None:
        self._client = client
        self._store = store
        self._metrics = metrics
        self._waiting: deque[WorkloadRecord] = deque(maxlen=200)
        self._woken = asyncio.Event()

    def add(self, record: WorkloadRecord) -> None:
        """Adds the record of a pod that started, unless the history holds it."""
        if self._store.history.workloads.get(record.uid) is None:
            self._waiting.append(record)
            self._woken.set()

    async def run(self) -> None:
        """Stores added records until cancelled."""
        while True:
            await self._woken.wait()
            self._woken.clear()
            while self._waiting:
                record = self._waiting.popleft()
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
