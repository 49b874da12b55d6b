"""Keeps the text of ``/metrics`` about cards and their users up to date, beside the scrapes.

The exporter takes a sample each :data:`PERIOD` seconds, and also when the agent notes a change, such as a new slice, so
that a slice made before a scrape is in it. Between two samples lies at least :data:`SHORTEST`, for a burst of changes
costs one sample.
"""

import logging

from tessera.agent.base.change_notifier import ChangeNotifier
from tessera.agent.monitoring.exposition import ExpositionOptions, render
from tessera.agent.monitoring.lease_states import JudgedLease, LeaseStates
from tessera.agent.monitoring.sampler import NodeSampler
from tessera.clock import Clock
from tessera.nvml.interface import GpuEvent

_log = logging.getLogger(__name__)

#: Seconds between two samples without a change; Prometheus commonly scrapes every 10 to 60.
PERIOD = 10.0
#: Least seconds between two samples.
SHORTEST = 1.0


class Exporter:
    """Samples a node and writes its metrics.

    Args:
        sampler: takes samples.
        options: dialect and limits of the series.
        changes: notified when cards, slices or pods change.
        clock: the time.
    """

    def __init__(self, sampler: NodeSampler, options: ExpositionOptions, changes: ChangeNotifier, clock: Clock) -> None:
        self._sampler = sampler
        self._options = options
        self._changes = changes
        self._clock = clock
        #: By card, the last XID that the driver reported.
        self._last_xids: dict[str, int] = {}
        self._states = LeaseStates()
        self._leases: tuple[JudgedLease, ...] = ()
        self._text = b""

    @property
    def text(self) -> bytes:
        """The series of the last sample; empty before the first one."""
        return self._text

    @property
    def leases(self) -> tuple[JudgedLease, ...]:
        """The leases of the last sample with their states."""
        return self._leases

    def note_hardware_event(self, event: GpuEvent | None) -> None:
        """Notes the XID of a hardware event."""
        if event is not None and event.xid is not None and event.gpu is not None:
            self._last_xids[event.gpu] = event.xid

    async def run(self) -> None:
        """Samples until cancelled."""
        while True:
            count = self._changes.count
            sample = await self._sampler.take()
            self._leases = self._states.handle(sample)
            self._text = render(
                sample, self._options, unix_time=self._clock.now(), last_xids=self._last_xids, judged=self._leases
            )
            await self._clock.sleep(SHORTEST)
            await self._changes.wait(count, PERIOD - SHORTEST)
