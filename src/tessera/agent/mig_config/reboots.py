"""Whether the node may be rebooted for a card that cannot be reset: once for a layout, and on top of nobody.

Rules: the other cards come first; no pod and no process may be on any card of the node; the reboot is remembered, on
disk and flushed, before it is asked for; a layout for which the node was rebooted once and that still needs it has
failed. Cordon and drain are not done here: whoever lets the node be rebooted decides what else runs on it.
"""

import asyncio
from collections.abc import Awaitable, Callable

from tessera.agent.mig_config.device_users import Tenants
from tessera.agent.mig_config.journal import Journal
from tessera.agent.mig_config.status import CardVerdict, LayoutState
from tessera.clock import Clock
from tessera.nvml.errors import NvmlError
from tessera.nvml.worker import AsyncNvml

#: Seconds after which a node that was asked to reboot and still runs is said not to reboot.
PATIENCE = 600.0


class Reboots:
    """Asks for reboots.

    Args:
        reboot: reboots the node; returns or raises OSError soon, the machine goes down after it.
        boot_id: the node's boot id, empty while it is not known.
        journal: what is remembered.
        remember: notes, for good, the boot id in which a reboot was asked for; raises OSError when it cannot.
        busy: whether another card is still worked on.
        tenants: who holds what.
        hardware: the node's cards.
        clock: for the patience.
    """

    def __init__(
        self,
        reboot: Callable[[], Awaitable[None]],
        *,
        boot_id: Callable[[], str],
        journal: Callable[[], Journal],
        remember: Callable[[str], None],
        busy: Callable[[], bool],
        tenants: Tenants,
        hardware: AsyncNvml,
        clock: Clock,
    ) -> None:
        self._reboot = reboot
        self._boot_id = boot_id
        self._journal = journal
        self._remember = remember
        self._busy = busy
        self._tenants = tenants
        self._hardware = hardware
        self._clock = clock
        self._asked: float | None = None
        self._alone = asyncio.Lock()

    async def ask(self, why: str) -> CardVerdict:
        """Reboots the node if it may be; says what came of it.

        Args:
            why: which card needs it and for what reason.
        """
        async with self._alone:
            boot = self._boot_id()
            if not boot:
                return _failed(f"{why}; the node's boot id is not known, so no reboot is asked for")
            before = self._journal().rebooted_from
            if before == boot:
                return self._patient(why)
            if before:
                return _failed(f"{why}; the node was rebooted for this layout once, which did not help")
            hindrance = await self._hindrance()
            if hindrance:
                return CardVerdict(LayoutState.PENDING, "CardsInUse", f"{why}; the node's reboot waits for {hindrance}")
            return await self._ask(boot, why)

    async def _ask(self, boot: str, why: str) -> CardVerdict:
        try:
            self._remember(boot)
            self._asked = self._clock.monotonic()
            try:
                await self._reboot()
            except OSError:
                self._remember("")
                raise
        except OSError as error:
            return _failed(f"{why}; the node cannot be rebooted: {error}")
        return self._patient(why)

    def _patient(self, why: str) -> CardVerdict:
        now = self._clock.monotonic()
        if self._asked is None:
            self._asked = now
        if now - self._asked > PATIENCE:
            return _failed(f"{why}; the node was asked to reboot {PATIENCE:.0f} s ago and has not; reboot it")
        return CardVerdict(LayoutState.REBOOTING, "Rebooting", why)

    async def _hindrance(self) -> str:
        """What stands against a reboot now; empty if nothing does."""
        if self._busy():
            return "the other cards"
        try:
            held = await self._tenants.now()
            if pods := sorted({str(each) for tenants in held.values() for each in tenants}):
                return ", ".join(pods)
            cards = [each.uuid for each in await self._hardware.devices() if not each.lost]
            pids = [str(one.pid) for uuid in cards for one in await self._hardware.processes(uuid)]
        except (ConnectionError, NvmlError) as error:
            return f"an answer to who uses the cards: {error}"
        return f"process {', '.join(pids)}" if pids else ""


def _failed(text: str) -> CardVerdict:
    return CardVerdict(LayoutState.FAILED, "ResetRequired", text)
