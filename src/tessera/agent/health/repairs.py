"""What an agent does by itself about a card with a fault: resets it, tests it, asks for a reboot of its node.

:mod:`tessera.agent.health.faults` says what a card needs. Each of the three is tried after a probe of the card; the
executors decide whether it can be done now.
"""

import math

from tessera.agent.health.executor import CardResetter
from tessera.agent.health.faults import HealthStateMachine
from tessera.agent.health.messages import HealthEvents
from tessera.agent.health.preflights import CardPreflights, Report
from tessera.agent.health.reboots import REBOOT_DELAY, REBOOT_RETRY, RepairReboots
from tessera.agent.inventory.device_health import DeviceScope
from tessera.api.nodes.repairs import RebootWay
from tessera.nvml.errors import NvmlError
from tessera.nvml.interface import GpuInfo


class CardRepairs:
    """Does what cards need.

    Args:
        health: the faults of the cards.
        events: tells people what was done.
        resetter: resets cards that need it; ``None`` to leave that to administrators.
        reboots: asks for reboots of the node; ``None`` to leave that to administrators.
        preflights: tests new or repaired cards; ``None`` if clean probes are enough.
    """

    def __init__(
        self,
        health: HealthStateMachine,
        events: HealthEvents,
        *,
        resetter: CardResetter | None,
        reboots: RepairReboots | None,
        preflights: CardPreflights | None,
    ) -> None:
        self._health = health
        self._events = events
        self._resetter = resetter
        self._reboots = reboots
        self._preflights = preflights
        #: Monotonic time of the last request for a reboot that failed.
        self._reboot_failed = -math.inf

    async def reset(self, uuid: str) -> bool:
        """Resets a card whose worst fault requires that, unless it was reset since; returns true if it did."""
        if self._resetter is None or not self._health.needs_reset(uuid):
            return False
        try:
            done = await self._resetter.reset(uuid)
        except NvmlError as error:
            self._events.record_failed_reset(uuid, error)
            return False
        if done:
            self._events.record_reset(uuid)
        return done

    def preflight(self, gpu: GpuInfo, report: Report) -> None:
        """Begins to test a card that waits for it; ``report`` is called with the result."""
        since = self._health.awaits_preflight(gpu.uuid)
        if self._preflights is not None and since is not None:
            self._preflights.start(gpu, since, report)

    async def reboot(self, uuid: str, boot: str, *, now: float, monotonic: float) -> None:
        """Asks for a reboot for a card that has needed one for a while; a card that is well may need another later.

        Args:
            uuid: the card.
            boot: the node's boot id; empty while unknown.
            now: seconds of the clock of the faults.
            monotonic: seconds of the monotonic clock.
        """
        way = self._health.repairs.reboot
        if self._reboots is None or way is RebootWay.NONE:
            return
        since = self._health.needs_reboot(uuid)
        due = since is not None and now - since >= REBOOT_DELAY and monotonic - self._reboot_failed >= REBOOT_RETRY
        try:
            if since is None and self._health.health_of(DeviceScope(uuid)).healthy:
                self._reboots.forget(uuid)
            if due and await self._reboots.request(uuid, boot, drains=way.drains):
                self._events.record_reboot(uuid)
        except OSError as error:
            self._reboot_failed = monotonic
            self._events.record_failed_reboot(uuid, error)

    def stop(self) -> None:
        """Ends the test that runs."""
        if self._preflights is not None:
            self._preflights.stop()
