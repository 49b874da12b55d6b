"""Tests a new or repaired card before it is allocated: one card at a time, and never one that somebody uses.

:mod:`tessera.agent.health.faults` decides that a card waits for it, :mod:`tessera.agent.validation.preflight_runner`
tests it. Where the test fails, the card stays away, and the next test comes after a growing pause. A card in MIG mode
has no device for the test until a layout or a slice makes one, so it is allocated after its clean probes alone.
"""

import asyncio
from collections.abc import Callable

from tessera.agent.base.call_retries import RetryDelays
from tessera.agent.health.events import PreflightEnded
from tessera.agent.health.executor import CardHost
from tessera.agent.validation.preflight import CardPreflight
from tessera.agent.validation.preflight_runner import PreflightRunner
from tessera.clock import Clock
from tessera.nvml.interface import GpuInfo

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
