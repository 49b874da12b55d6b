"""Reboots the node for a card that cannot be reset: once for a layout, and only while no card is in use.

Rules: the other cards are finished first. No pod and no process may be on any card of the node. The journal records the
reboot, flushed to disk, before the request. If a layout still needs a reboot after one, it has failed. Tessera does not
cordon or drain here: an administrator who allows reboots decides what else runs on the node.
"""

import asyncio
import logging
from typing import Protocol

from tessera.agent.base.runtime import RebootNode
from tessera.agent.mig_config.drain import DeviceDrainer
from tessera.agent.mig_config.journal import LayoutJournal
from tessera.agent.mig_config.status import CardStatus, LayoutState
from tessera.clock import Clock
from tessera.nvml.asynchronous.async_nvml import AsyncNvml
from tessera.nvml.errors import NvmlError

_log = logging.getLogger(__name__)

#: Seconds from the request until a node that still runs counts as one that does not reboot.
REBOOT_TIMEOUT = 600.0


class BootIdSource(Protocol):
    """Gives the node's boot id."""

    def boot_id(self) -> str:
        """The node's boot id; empty while unknown."""
        ...


class RebootRequests:
    """Asks for reboots of the node.

    Args:
        reboot: reboots the node.
        node: gives the boot id.
        journal: records reboots.
        users: lists the users of each device.
        hardware: the node's cards.
        clock: for :data:`REBOOT_TIMEOUT`.
    """

    def __init__(
        self,
        reboot: RebootNode,
        *,
        node: BootIdSource,
        journal: LayoutJournal,
        users: DeviceDrainer,
        hardware: AsyncNvml,
        clock: Clock,
    ) -> None:
        self._reboot = reboot
        self._node = node
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
            boot_id = self._node.boot_id()
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


#: Command that enters the host and requests the reboot; ``nsenter`` is in util-linux, which every Debian image has.
ARGUMENTS = ("--target", "1", "--mount", "--uts", "--ipc", "--net", "--pid", "--")
#: Requests the reboot.
SYSTEMCTL = ("systemctl", "reboot")
#: Makes the file by which kured and Debian's tools know that the host wants a reboot.
SENTINEL = ("touch", "/var/run/reboot-required")
#: ``PATH`` for the container and the host; no other variable of the container's environment is valid there.
ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
#: Seconds that systemd may take to accept the request. A systemctl without an answer gives up after 25 s.
SYSTEMCTL_TIMEOUT = 30.0


async def request_by_sentinel(*, nsenter: str = "nsenter", seconds: float = SYSTEMCTL_TIMEOUT) -> None:
    """Asks whoever watches the host's file ``/var/run/reboot-required``, such as kured, to drain and reboot the node.

    Raises:
        OSError: the host cannot be entered, or refuses.
    """
    await _run_on_host(SENTINEL, nsenter, seconds)


async def reboot_host(*, nsenter: str = "nsenter", seconds: float = SYSTEMCTL_TIMEOUT) -> None:
    """Asks the host's systemd to reboot. Returns when systemd has agreed; the host goes down after that.

    If the host does not answer in time, the request counts as made: it may still reboot, and must not be asked again.

    The agent's pod is privileged and sees the host's processes, so it can enter the namespaces of process 1 and call
    ``systemctl`` there. Services end in order, kubelet's graceful shutdown of pods included where it is set up. Without
    the host's processes, process 1 is the container's own and has no systemctl; the error says so.

    Args:
        nsenter: the program that enters the host.
        seconds: seconds that the answer may take.

    Raises:
        OSError: the host cannot be entered, or refuses.
    """
    await _run_on_host(SYSTEMCTL, nsenter, seconds)


async def _run_on_host(command: tuple[str, ...], nsenter: str, seconds: float) -> None:
    shown = " ".join(command)
    try:
        process = await asyncio.create_subprocess_exec(
            nsenter,
            *ARGUMENTS,
            *command,
            env=ENVIRONMENT,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
    except OSError as error:
        raise OSError(f"{nsenter} cannot be run: {error.strerror}; it is part of util-linux") from error
    try:
        async with asyncio.timeout(seconds):
            answer, _ = await process.communicate()
    except TimeoutError:
        _log.warning("`%s` on the host has not answered within %g s; the reboot counts as requested", shown, seconds)
        return
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise OSError(_refusal(shown, answer.decode(errors="replace").strip(), process.returncode))


def _refusal(command: str, answer: str, code: int) -> str:
    text = f"`{command}` on the host ended with {code}: {answer or 'no reason given'}"
    if "systemctl" in answer or "nsenter" in answer:
        text += "; it needs a privileged container with hostPID on a host with systemd"
    return text
