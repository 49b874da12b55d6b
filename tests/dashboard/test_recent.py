"""A value that is read again once it is too old: who shares a reading, and what a failed one leaves."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tessera.clock import LoopClock
from tessera.dashboard.source import Recent
from tessera_lab.simulation.virtual_time import run_virtual

#: Seconds of one reading.
TAKES = 2.0


class Readings:
    """Readings by their numbers; those in ``failing`` raise."""

    def __init__(self, failing: frozenset[int] = frozenset()) -> None:
        self.begun = 0
        self.clock = LoopClock(0.0)
        self.value = Recent(self._read, self.clock)
        self._failing = failing

    async def _read(self) -> int:
        self.begun += 1
        number = self.begun
        await self.clock.sleep(TAKES)
        if number in self._failing:
            raise ValueError(number)
        return number


def play(scenario: Callable[[Readings], Awaitable[None]], *failing: int) -> None:
    """Plays on virtual time."""

    async def run() -> None:
        await scenario(Readings(frozenset(failing)))

    run_virtual(run())


@pytest.mark.parametrize("oldest", [0.0, TAKES / 2, 60.0])
def test_those_who_ask_while_it_is_read_get_what_is_read(oldest: float) -> None:
    async def scenario(readings: Readings) -> None:
        assert await asyncio.gather(*(readings.value.get(oldest) for _ in range(5))) == [1] * 5
        assert readings.value.read_at == readings.clock.monotonic() - TAKES

    play(scenario)


def test_it_is_read_again_once_it_is_too_old() -> None:
    async def scenario(readings: Readings) -> None:
        assert await readings.value.get(10.0) == 1
        await readings.clock.sleep(7.9)
        assert await readings.value.get(10.0) == 1
        await readings.clock.sleep(0.2)
        assert await readings.value.get(10.0) == 2
        assert await readings.value.get(0.0) == 3

    play(scenario)


def test_after_a_reading_that_failed_or_was_cancelled_the_next_one_reads() -> None:
    async def scenario(readings: Readings) -> None:
        assert await readings.value.get(10.0) == 1
        await readings.clock.sleep(60)
        with pytest.raises(ValueError, match="2"):
            await readings.value.get(10.0)
        asks = asyncio.create_task(readings.value.get(10.0))
        waits = asyncio.create_task(readings.value.get(10.0))
        await readings.clock.sleep(TAKES / 2)
        asks.cancel()
        assert await waits == 4
        assert readings.value.value == 4

    play(scenario, 2)
