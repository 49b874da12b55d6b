"""Writes a node's provisioning record to the node's annotation, for readers and for the next controller.

Changes of a node are gathered for :data:`SETTLE` seconds. A failed write is repeated with the newest record.
"""

import asyncio
import logging
import random
from collections.abc import Callable

from tessera.clock import Clock
from tessera.kube.backoff import Backoff
from tessera.kube.client.client import Client
from tessera.kube.client.errors import ApiError, Conflict, NotFound
from tessera.kube.resources import NODES
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
        client: writes the nodes.
        clock: the time, for pauses.
        tracker: has the records, and the names of those that changed.
        metrics: counts failed writes.
        rng: random numbers for jitter.
        may_act: True while this replica leads; called before each write.
    """

    def __init__(
        self,
        client: Client,
        clock: Clock,
        *,
        tracker: Tracker,
        metrics: ProvisioningMetrics,
        rng: random.Random,
        may_act: Callable[[], bool],
    ) -> None:
        self._client = client
        self._clock = clock
        self._tracker = tracker
        self._metrics = metrics
        self._may_act = may_act
        self._backoff = Backoff(rng)
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
