"""Runs the preflight of one card for the agent, when the card is new or was repaired.

Real cards are tested in a process of its own (``tessera validate --preflight``), which ends whatever the driver does
and holds no card afterwards. The result comes back as JSON, with the numbers.
"""

import asyncio
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Protocol

import msgspec

from tessera.api.nodes.preflights import OUTPUT_SIZE, CardPreflight, Preflight
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
    output, errors = await asyncio.gather(_read_bounded(process.stdout), _read_bounded(process.stderr))
    status = await process.wait()
    try:
        found = msgspec.json.decode(output, type=Preflight)
        (result,) = (each for each in found.cards if each.uuid == card.uuid)
    except ValueError:
        lines = errors.decode(errors="replace").strip().splitlines()
        return failed(card, lines[-1] if lines else f"the preflight ended with status {status} and said nothing")
    return result


async def _read_bounded(stream: asyncio.StreamReader | None) -> bytes:
    """The stream up to the limit; what comes after it is read and dropped, so that the process can end."""
    kept = bytearray()
    while stream is not None and (part := await stream.read(65536)):
        kept += part[: OUTPUT_SIZE - len(kept)]
    return bytes(kept)
