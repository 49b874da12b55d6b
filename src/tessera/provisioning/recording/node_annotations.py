"""Writes a node's provisioning record to the node's annotation, for readers and for the next controller.

Changes of a node are gathered for :data:`SETTLE` seconds. A failed write is repeated with the newest record.
"""

import asyncio
import logging

from tessera.kube.backoff import Backoff
from tessera.kube.client.errors import ApiError, Conflict, NotFound
from tessera.kube.resources import NODES
from tessera.kube.runtime import KubeRuntime
from tessera.provisioning.history import encode_record
from tessera.provisioning.metrics import ProvisioningMetrics
from tessera.provisioning.milestones import PROVISIONING_ANNOTATION
from tessera.provisioning.tracking.tracker import Tracker

_log = logging.getLogger(__name__)

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
