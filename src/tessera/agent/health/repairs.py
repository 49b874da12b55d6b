"""What an agent does by itself about a card with a fault: resets it, tests it, asks for a reboot of its node.

:mod:`tessera.agent.health.faults` says what a card needs. Each of the three is tried after a probe of the card; the
executors decide whether it can be done now.

A new or repaired card is tested before it is allocated: one card at a time, and never one that somebody uses. Where the
test fails, the card stays away, and the next test comes after a growing pause. A card in MIG mode has no device for the
test until a layout or a slice makes one, so it is allocated after its clean probes alone. Real cards are tested in a
process of its own (``tessera validate --preflight``), which ends whatever the driver does and holds no card afterwards.
The result comes back as JSON, with the numbers.

A reboot is asked for once for a fault, and never again if it did not help. How the node is rebooted is the
administrator's choice (:mod:`tessera.agent.base.host`): systemd or a command reboots it at once, so no pod may hold any
card of the node; a file on the host or an annotation asks another tool, which drains the node first. The request is on
disk, flushed, before it is made, so an agent that is killed does not ask twice over boots; one that was killed before
it had asked asks in the same boot. A card that is well again may ask anew.
"""

import asyncio
import math
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import msgspec

from tessera.agent.base.host import read_bounded
from tessera.agent.base.node_files import StateFile
from tessera.agent.base.runtime import RebootNode
from tessera.agent.base.wake_ups import RetryDelays
from tessera.agent.health.card_health import HealthEvents
from tessera.agent.health.executor import CardHost, CardResetter
from tessera.agent.health.fault import PreflightEnded
from tessera.agent.health.faults import HealthStateMachine
from tessera.agent.inventory.device_state import DeviceScope
from tessera.api.nodes.preflights import OUTPUT_SIZE, CardPreflight, Preflight
from tessera.api.nodes.repairs import RebootWay
from tessera.clock import Clock
from tessera.nvml.errors import NvmlError
from tessera.nvml.interface import GpuInfo
from tessera.text import one_line

#: Seconds that the tests of one card may take. They move its memory four times, and compute for a second.
CARD_SECONDS = 300.0
#: Seconds that the quick test of a device may take: half of what kubelet waits for the start of a container. It moves
#: the device's memory four times, and starting CUDA on a machine with many cards takes some seconds.
QUICK_SECONDS = 15.0
#: Most characters of a process's error that a result keeps.
_ERROR = 300


class PreflightRunner(Protocol):
    """Tests cards; the caller has taken them from everybody else."""

    async def run(self, card: GpuInfo) -> CardPreflight:
        """Tests a card. Never raises: a test that cannot run is a result with an error, so the card stays away."""
        ...

    async def run_quick(self, card: GpuInfo, device: str, /) -> CardPreflight:
        """Tests a card, or the MIG device of it with that UUID, in a few seconds, and judges no rate. Never raises."""
        ...


class ProcessPreflight:
    """Tests real cards, each in a process.

    Args:
        environment: of the process; it finds the driver's libraries there.
        seconds: how long a card may take.
        command: how the process is started.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        *,
        seconds: float = CARD_SECONDS,
        command: tuple[str, ...] = (sys.executable, "-m", "tessera"),
    ) -> None:
        self._environment, self._seconds, self._command = dict(environment), seconds, command

    async def run(self, card: GpuInfo) -> CardPreflight:
        """See :meth:`PreflightRunner.run`."""
        return await self._run(card, (), self._environment, self._seconds)

    async def run_quick(self, card: GpuInfo, device: str) -> CardPreflight:
        """See :meth:`PreflightRunner.run_quick`. The process sees no other device."""
        environment = {**self._environment, "CUDA_VISIBLE_DEVICES": device}
        return await self._run(card, ("--quick",), environment, min(self._seconds, QUICK_SECONDS))

    async def _run(
        self, card: GpuInfo, options: tuple[str, ...], environment: Mapping[str, str], seconds: float
    ) -> CardPreflight:
        command = (*self._command, "validate", "--preflight", *options, "--card", card.uuid, "--output", "json")
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=environment,
                limit=OUTPUT_SIZE,
            )
        except OSError as error:
            return failed(card, f"the preflight cannot start: {error.strerror}")
        try:
            return await asyncio.wait_for(_read(process, card), seconds)
        except TimeoutError:
            return failed(card, f"no answer within {seconds:g} s: the driver hangs; reboot the node")
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            with suppress(TimeoutError):  # a process that hangs in the driver cannot even be killed
                await asyncio.wait_for(process.wait(), 1.0)


def failed(card: GpuInfo, error: str, *, tool: str = "tessera") -> CardPreflight:
    """The result of a card that could not be tested."""
    return CardPreflight(uuid=card.uuid, index=card.index, product=card.name, error=one_line(error, _ERROR), tool=tool)


async def _read(process: asyncio.subprocess.Process, card: GpuInfo) -> CardPreflight:
    """The process's result; its error if it has none."""
    output, errors = await asyncio.gather(
        *(read_bounded(each, OUTPUT_SIZE) for each in (process.stdout, process.stderr))
    )
    status = await process.wait()
    try:
        found = msgspec.json.decode(output, type=Preflight)
        (result,) = (each for each in found.cards if each.uuid == card.uuid)
    except ValueError:
        lines = errors.decode(errors="replace").strip().splitlines()
        return failed(card, lines[-1] if lines else f"the preflight ended with status {status} and said nothing")
    return result


#: Seconds from the error to the request, in which an error that passes can pass and pods can be evicted.
REBOOT_DELAY = 120.0
#: Seconds after which a request that failed is made again.
REBOOT_RETRY = 3600.0


class StoredReboots(msgspec.Struct, frozen=True):
    """The content of the file: by card, the boot in which a reboot was asked for, and the card asked for now."""

    boots: dict[str, str] = {}
    pending: str = ""


class RepairReboots:
    """Asks for reboots.

    Args:
        reboot: reboots the node, or asks for that.
        file: keeps the requests over restarts and reboots.
        host: reports if any card of the node is in use.
    """

    def __init__(self, reboot: RebootNode, *, file: Path, host: CardHost) -> None:
        self._reboot = reboot
        self._file = StateFile(file, StoredReboots)
        self._host = host
        #: The requests for cards that are not well since.
        stored = self._file.load() or StoredReboots()
        self._asked = dict(stored.boots)
        #: The card for which a killed agent may not have asked.
        self._pending = stored.pending

    async def request(self, gpu: str, boot: str, *, drains: bool) -> bool:
        """Asks for a reboot, if none was asked for the card and no pod stands in the way; returns true if it did.

        Args:
            gpu: the card that needs it.
            boot: the node's boot id; empty while unknown, and then nothing is asked.
            drains: true if whoever reboots the node drains it first, so that cards may be in use.

        Raises:
            OSError: the request cannot be kept, or is refused.
        """
        made = gpu in self._asked and (gpu, boot) != (self._pending, self._asked[gpu])
        if not boot or made or not (drains or await self._is_node_empty()):
            return False
        self._keep(self._asked | {gpu: boot}, pending=gpu)
        try:
            await self._reboot()
        except OSError:
            self._keep({uuid: each for uuid, each in self._asked.items() if uuid != gpu})
            raise
        self._pending = ""
        with suppress(OSError):  # a restarted agent asks again, which changes nothing
            self._keep(self._asked)
        return True

    def forget(self, gpu: str) -> None:
        """Takes in that a card is well: its next fault may ask again.

        Raises:
            OSError: that cannot be kept.
        """
        if gpu in self._asked:
            self._keep({uuid: each for uuid, each in self._asked.items() if uuid != gpu})

    async def _is_node_empty(self) -> bool:
        try:
            return await self._host.is_node_empty()
        except ConnectionError:
            return False

    def _keep(self, asked: dict[str, str], pending: str = "") -> None:
        self._file.save(StoredReboots(asked, pending), flush=True)
        self._asked, self._pending = asked, pending


#: Delays between two tests of a card.
TEST_DELAYS = RetryDelays(first=300.0, most=6 * 3600.0)

#: Takes in what a test means for the card's health, and its result with the numbers.
Report = Callable[[PreflightEnded, CardPreflight], None]


class CardPreflights:
    """Tests cards that wait for it.

    Args:
        runner: tests a card.
        host: reports if a card is in use.
        clock: the time.
    """

    def __init__(self, runner: PreflightRunner, *, host: CardHost, clock: Clock) -> None:
        self._runner = runner
        self._host = host
        self._clock = clock
        #: The test that runs; None before the first one.
        self._task: asyncio.Task[None] | None = None
        #: Beginning of each card's last wait, the number of its tests since, and the time of the last one.
        self._attempts: dict[str, tuple[float, int, float]] = {}

    def start(self, gpu: GpuInfo, since: float, report: Report) -> None:
        """Begins to test a card, unless a test runs or the card's pause is not over.

        Args:
            gpu: the card.
            since: beginning of its wait, which the result names.
            report: called with the result; not if the card is in use, which is asked again at the next call.
        """
        if self._task is not None and not self._task.done():
            return
        wait, count, last = self._attempts.get(gpu.uuid, (since, 0, 0.0))
        if wait == since and count and self._clock.monotonic() - last < TEST_DELAYS.after(count):
            return
        self._task = asyncio.create_task(self._test(gpu, since, report), name=f"test of {gpu.uuid}")

    async def _test(self, gpu: GpuInfo, since: float, report: Report) -> None:
        try:
            if not await self._host.is_unused(gpu.uuid):
                return
        except ConnectionError:
            return
        wait, count, _ = self._attempts.get(gpu.uuid, (since, 0, 0.0))
        found = _skipped(gpu) if gpu.mig_enabled else await self._runner.run(gpu)
        self._attempts[gpu.uuid] = since, (count if wait == since else 0) + 1, self._clock.monotonic()
        report(PreflightEnded(gpu.uuid, since, "; ".join(found.findings)), found)

    def stop(self) -> None:
        """Ends the test that runs."""
        if self._task is not None:
            self._task.cancel()


def _skipped(gpu: GpuInfo) -> CardPreflight:
    return CardPreflight(uuid=gpu.uuid, index=gpu.index, product=gpu.name, skipped="the card is in MIG mode")


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
