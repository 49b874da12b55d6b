"""Reboots the node for a card that cannot be reset: once for a layout, and only while no card is in use.

Rules: the other cards are finished first. No pod and no process may be on any card of the node. The journal records the
reboot, flushed to disk, before the request. If a layout still needs a reboot after one, it has failed. Tessera does not
cordon or drain here: an administrator who allows reboots decides what else runs on the node.
"""

import asyncio
from collections.abc import Callable

from tessera.agent.base.runtime import RebootNode
from tessera.agent.mig_config.drain import DeviceDrainer
from tessera.agent.mig_config.journal import LayoutJournal
from tessera.agent.mig_config.status import CardStatus, LayoutState
from tessera.clock import Clock
from tessera.nvml.asynchronous.async_nvml import AsyncNvml
from tessera.nvml.errors import NvmlError

#: Seconds from the request until a node that still runs counts as one that does not reboot.
REBOOT_TIMEOUT = 600.0


class RebootRequests:
    """Asks for reboots of the node.

    Args:
        reboot: reboots the node.
        boot_id: the node's boot id; empty while unknown.
        journal: records reboots.
        users: lists the users of each device.
        hardware: the node's cards.
        clock: for :data:`REBOOT_TIMEOUT`.
    """

    def __init__(
        self,
        reboot: RebootNode,
        *,
        boot_id: Callable[[], str],
        journal: LayoutJournal,
        users: DeviceDrainer,
        hardware: AsyncNvml,
        clock: Clock,
    ) -> None:
        self._reboot = reboot
        self._boot_id = boot_id
        self._journal = journal
        self._users = users
        self._hardware = hardware
        self._clock = clock
        #: Time at which this process requested a reboot or learned of a request; monotonic seconds.
        self._asked_at: float | None = None
        self._lock = asyncio.Lock()

    async def request(self, reason: str, *, others_pending: bool) -> CardStatus:
        """Reboots the node if that is allowed now; returns the status of the card.

        Args:
            reason: the card that needs the reboot, and why.
            others_pending: true if another card is not finished yet.
        """
        async with self._lock:
            boot_id = self._boot_id()
            if not boot_id:
                return _failed_status(f"{reason}; the node's boot id is not known, so no reboot is requested")
            before = self._journal.record.rebooted_from
            if before == boot_id:
                return self._wait_for_reboot(reason)
            if before:
                return _failed_status(f"{reason}; the node was rebooted for this layout once, which did not help")
            blocker = "the other cards" if others_pending else await self._find_blocker()
            if blocker:
                text = f"{reason}; the node's reboot waits for {blocker}"
                return CardStatus(LayoutState.PENDING, "CardsInUse", text)
            return await self._request(boot_id, reason)

    async def _request(self, boot_id: str, reason: str) -> CardStatus:
        try:
            self._journal.save_reboot(boot_id)
            self._asked_at = self._clock.monotonic()
            try:
                await self._reboot()
            except OSError:
                self._journal.save_reboot("")
                raise
        except OSError as error:
            return _failed_status(f"{reason}; the node cannot be rebooted: {error}")
        return self._wait_for_reboot(reason)

    def _wait_for_reboot(self, reason: str) -> CardStatus:
        now = self._clock.monotonic()
        if self._asked_at is None:
            self._asked_at = now
        if now - self._asked_at > REBOOT_TIMEOUT:
            return _failed_status(
                f"{reason}; the node was asked to reboot {REBOOT_TIMEOUT:.0f} s ago and has not; reboot it"
            )
        return CardStatus(LayoutState.REBOOTING, "Rebooting", reason)

    async def _find_blocker(self) -> str:
        """The pods or processes on any card, for people; empty if there are none."""
        try:
            found = await self._users.list()
            if pods := sorted({str(each) for users in found.values() for each in users}):
                return ", ".join(pods)
            cards = [each.uuid for each in await self._hardware.devices() if each.readable]
            pids = [str(one.pid) for uuid in cards for one in await self._hardware.processes(uuid)]
        except (ConnectionError, NvmlError) as error:
            return f"the list of pods and processes on the cards, which cannot be read: {error}"
        return f"process {', '.join(pids)}" if pids else ""


def _failed_status(text: str) -> CardStatus:
    return CardStatus(LayoutState.FAILED, "ResetRequired", text)
