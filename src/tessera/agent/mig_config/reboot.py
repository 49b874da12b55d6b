"""Whether the node may be rebooted for a card that cannot be reset: once for a layout, and on top of nobody.

Rules: the other cards come first; no pod and no process may be on any card of the node; the reboot is remembered, on
disk and flushed, before it is asked for; a layout for which the node was rebooted once and that still needs it has
failed. Cordon and drain are not done here: whoever lets the node be rebooted decides what else runs on it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from tessera.agent.mig_config.device_users import DeviceUserLookup
from tessera.agent.mig_config.journal import LayoutRecord
from tessera.agent.mig_config.status import CardStatus, LayoutState
from tessera.clock import Clock
from tessera.nvml.asynchronous.async_nvml import AsyncNvml
from tessera.nvml.errors import NvmlError

#: Seconds after which a node that was asked to reboot and still runs is said not to reboot.
REBOOT_TIMEOUT = 600.0


class RebootRequests:
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
        journal: Callable[[], LayoutRecord],
        remember: Callable[[str], None],
        busy: Callable[[], bool],
        tenants: DeviceUserLookup,
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

    async def request(self, why: str) -> CardStatus:
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
                return CardStatus(LayoutState.PENDING, "CardsInUse", f"{why}; the node's reboot waits for {hindrance}")
            return await self._ask(boot, why)

    async def _ask(self, boot: str, why: str) -> CardStatus:
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

    def _patient(self, why: str) -> CardStatus:
        now = self._clock.monotonic()
        if self._asked is None:
            self._asked = now
        if now - self._asked > REBOOT_TIMEOUT:
            return _failed(f"{why}; the node was asked to reboot {REBOOT_TIMEOUT:.0f} s ago and has not; reboot it")
        return CardStatus(LayoutState.REBOOTING, "Rebooting", why)

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


def _failed(text: str) -> CardStatus:
    return CardStatus(LayoutState.FAILED, "ResetRequired", text)


_log = logging.getLogger(__name__)

#: Enters the host and asks for the reboot; ``nsenter`` is of util-linux, which every Debian image has.
ARGUMENTS = ("--target", "1", "--mount", "--uts", "--ipc", "--net", "--pid", "--", "systemctl", "reboot")
#: Where programs are, in the container and on the host; nothing else of the container's environment holds there.
ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
#: Seconds that systemd may take to accept it. A systemctl that gets no answer gives up by itself after 25 s.
SYSTEMCTL_TIMEOUT = 30.0


async def reboot_host(*, nsenter: str = "nsenter", patience: float = SYSTEMCTL_TIMEOUT) -> None:
    """Asks the host to reboot. Returns when it has agreed; it goes down after that.

    A host that does not answer in time counts as asked: the reboot may well come, and must not be asked for again.

    Args:
        nsenter: the program that enters the host.
        patience: seconds for the answer.

    Raises:
        OSError: the host cannot be entered, or refuses.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            nsenter,
            *ARGUMENTS,
            env=ENVIRONMENT,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
    except OSError as error:
        raise OSError(f"{nsenter} cannot be run: {error.strerror}; it is part of util-linux") from error
    try:
        async with asyncio.timeout(patience):
            said, _ = await process.communicate()
    except TimeoutError:
        _log.warning("`systemctl reboot` on the host has not answered within %g s; it counts as asked for", patience)
        return
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise OSError(_refusal(said.decode(errors="replace").strip(), process.returncode))


def _refusal(said: str, code: int) -> str:
    text = f"`systemctl reboot` on the host ended with {code}: {said or 'no reason given'}"
    if "systemctl" in said or "nsenter" in said:
        text += "; it needs a privileged container with hostPID on a host with systemd"
    return text
