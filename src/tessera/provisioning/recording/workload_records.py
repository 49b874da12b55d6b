"""Keeps the records of pods that started. If a node was created for a pod, its record has the time of the image pull.

Only kubelet's Events hold that time, and a query for one pod makes the server scan all Events of the namespace. So it
is sent only for pods with a new node, one after the other. Without an Event the time stays unknown.
"""

import asyncio
from collections import deque

import msgspec

from tessera.kube.client.client import Client
from tessera.kube.client.errors import ApiError
from tessera.kube.resources import EVENTS
from tessera.limits.provisioning import WAITING_RECORDS
from tessera.provisioning.metrics import ProvisioningMetrics
from tessera.provisioning.milestones import WorkloadRecord, WorkloadStep
from tessera.provisioning.phases import ROUNDED
from tessera.provisioning.recording.history_store import HistoryStore
from tessera.provisioning.tracking.timestamps import parse_time


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
        self._waiting: deque[WorkloadRecord] = deque(maxlen=WAITING_RECORDS)
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
                    self._metrics.started(record)
                    self._store.changed()

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
