"""Tests a card that was repaired before it is allocated again: one card at a time, and never one that somebody uses.

:mod:`tessera.agent.health.faults` decides that a card waits for it, :mod:`tessera.agent.validation.card_validator`
tests it. Where the test fails, the card stays away, and the next test comes after a growing pause. A card in MIG mode
has no device for the test until a layout or a slice makes one, so it is allocated after its clean probes alone.
"""

import asyncio
from collections.abc import Callable, Sequence

from tessera.agent.base.call_retries import RetryDelays
from tessera.agent.health.events import CardValidated
from tessera.agent.health.executor import CardHost
from tessera.agent.validation.card_validator import CardValidator
from tessera.clock import Clock
from tessera.nvml.interface import GpuInfo

#: Delays between two tests of a card.
TEST_DELAYS = RetryDelays(first=300.0, most=6 * 3600.0)


class RepairValidation:
    """Tests repaired cards.

    Args:
        validator: tests a card.
        host: reports if a card is in use.
        clock: the time.
    """

    def __init__(self, validator: CardValidator, *, host: CardHost, clock: Clock) -> None:
        self._validator = validator
        self._host = host
        self._clock = clock
        #: The test that runs; None before the first one.
        self._task: asyncio.Task[None] | None = None
        #: Number of tests of each repair, and the time of the last one; of the last repair of each card only.
        self._attempts: dict[str, tuple[float, int, float]] = {}

    def start(self, gpu: GpuInfo, repaired: float, report: Callable[[CardValidated], None]) -> None:
        """Begins to test a card, unless a test runs or the card's pause is not over.

        Args:
            gpu: the card.
            repaired: the time of its repair, which the result names.
            report: called with the result; not if the card is in use, which is asked again at the next call.
        """
        if self._task is not None and not self._task.done():
            return
        repair, count, last = self._attempts.get(gpu.uuid, (repaired, 0, 0.0))
        if repair == repaired and count and self._clock.monotonic() - last < TEST_DELAYS.after(count):
            return
        self._task = asyncio.create_task(self._test(gpu, repaired, report), name=f"test of {gpu.uuid}")

    async def _test(self, gpu: GpuInfo, repaired: float, report: Callable[[CardValidated], None]) -> None:
        try:
            if not await self._host.is_unused(gpu.uuid):
                return
        except ConnectionError:
            return
        repair, count, _ = self._attempts.get(gpu.uuid, (repaired, 0, 0.0))
        found: Sequence[str] = () if gpu.mig_enabled else (await self._validator.validate(gpu)).findings
        self._attempts[gpu.uuid] = repaired, (count if repair == repaired else 0) + 1, self._clock.monotonic()
        report(CardValidated(gpu.uuid, repaired, "; ".join(found)))

    def stop(self) -> None:
        """Ends the test that runs."""
        if self._task is not None:
            self._task.cancel()
