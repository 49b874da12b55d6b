"""Simulated GPUs under an event loop: a call sleeps for its latency on the clock and then returns at once.

So the lab's virtual time works, and two runs give the same order.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol, Self, TypeVar

from tessera.clock import Clock
from tessera.nvml.asynchronous import AsyncNvml
from tessera.nvml.interface import GpuEvent, GpuProcess, Nvml

T = TypeVar("T")


class SimulatedNvml(Nvml, Protocol):
    """Cards that report changes."""

    @property
    def poll_interval(self) -> float | None:
        """Seconds between two checks for changes by other processes; ``None`` if there can be none."""
        ...

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Calls ``changed`` after every change by this process; the function returned ends that."""
        ...

    def open_session(self) -> Callable[[], None]:
        """Opens NVML; the function returned ends that session. Raises DriverNotLoaded."""
        ...


class InlineNvml(AsyncNvml):
    """Simulated cards, called in the loop's own thread after their latency on ``clock`` has passed.

    Raises:
        DriverNotLoaded: on entering, when the machine has no driver loaded.
    """

    simulated = True

    def __init__(self, nvml: SimulatedNvml, clock: Clock) -> None:
        self._nvml = nvml
        self._clock = clock
        self._in_order: dict[str, asyncio.Lock] = {}
        self._end_session: Callable[[], None] | None = None

    async def __aenter__(self) -> Self:
        self._end_session = self._nvml.open_session()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        if self._end_session is not None:
            self._end_session()
        self._nvml.close()

    async def call(self, operation: str, call: Callable[[Nvml], T], *, card: str = "") -> T:
        """Does one call after the latency of ``operation``."""
        async with self._in_order.setdefault(card, asyncio.Lock()):
            if seconds := self._nvml.latency(operation):
                await self._clock.sleep(seconds)
            return call(self._nvml)

    async def wait_event(self, seconds: float) -> GpuEvent | None:
        """The next simulated event."""
        deadline = self._clock.monotonic() + seconds
        while (event := self._nvml.wait_event(0)) is None:
            remaining = deadline - self._clock.monotonic()
            if remaining <= 0:
                return None
            await self._wait_for_change(remaining)
        return event

    async def _process_exit(self, _processes: list[GpuProcess], /) -> None:
        await self._wait_for_change(None)

    async def _wait_for_change(self, at_most: float | None) -> None:
        """Returns at the next change, after ``at_most`` seconds, or when the next check for others' changes is due."""
        changed = asyncio.Event()
        unsubscribe = self._nvml.subscribe(changed.set)
        waits = [seconds for seconds in (at_most, self._nvml.poll_interval) if seconds is not None]
        try:
            async with asyncio.timeout(min(waits, default=None)):
                await changed.wait()
        except TimeoutError:
            pass
        finally:
            unsubscribe()
