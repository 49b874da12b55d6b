"""The driver of a simulated machine, how an event loop calls its cards, and what runs programs on them.

The agent knows none of it: whoever starts it with simulated cards gives it these.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, Self, TypeVar

from tessera.agent.base.change_notifier import ChangeNotifier, Fact
from tessera.agent.driver.hardware import DriverHome
from tessera.agent.health.preflight_runner import QUICK_SECONDS, failed
from tessera.agent.simulated.mps import SimulatedLauncher
from tessera.api.nodes.driver_status import DRIVER_CONTAINER_READY
from tessera.api.nodes.preflights import CardPreflight
from tessera.clock import Clock
from tessera.nvml.asynchronous import AsyncNvml
from tessera.nvml.errors import NvmlError
from tessera.nvml.interface import GpuEvent, GpuInfo, GpuProcess, Nvml
from tessera.nvml.simulated.simulated_machine import SimulatedMachine

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

    So the lab's virtual time works, and two runs give the same order.

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


class SimulatedDriver:
    """A simulated machine's driver. It has no files, so the marker of a driver container suffices.

    Args:
        machine: the simulated machine.
        clock: the time.
        markers: the folder of markers; ``None`` if there is none.
    """

    def __init__(self, machine: SimulatedMachine, clock: Clock, *, markers: Path | None = None) -> None:
        self._machine = machine
        self._clock = clock
        self._markers = markers

    def has_library(self) -> bool:
        """True if the driver is a container's: a container is ready, or the host has no driver itself."""
        ready = self._markers is not None and (self._markers / DRIVER_CONTAINER_READY).exists()
        return ready or self._machine.host_driver is None

    def module(self) -> str:
        """See :meth:`DriverBackend.module`."""
        return self._machine.loaded_driver or ""

    def nvml(self, _home: DriverHome) -> AsyncNvml:
        """See :meth:`DriverBackend.nvml`."""
        return InlineNvml(self._machine, self._clock)

    def root(self, _home: DriverHome) -> Path | None:
        """See :meth:`DriverBackend.root`."""
        return None

    def needs_new_process(self, _error: NvmlError) -> bool:
        """Always false: the lab puts no library into a container when it starts."""
        return False

    async def watch(self, changes: ChangeNotifier) -> None:
        """See :meth:`DriverBackend.watch`."""
        loaded = self.module()

        def compare_module() -> None:
            nonlocal loaded
            before, loaded = loaded, self.module()
            if loaded != before:
                changes.notify(Fact.DRIVER)

        unsubscribe = self._machine.subscribe(compare_module)
        try:
            await asyncio.Event().wait()
        finally:
            unsubscribe()


class SimulatedPreflight:
    """Tests simulated cards: nothing is computed, and a fault of the simulated machine is found.

    Args:
        machine: the cards.
        clock: the time that a test takes, as :meth:`.SimulatedMachine.slow` sets it for ``compute``.
    """

    def __init__(self, machine: SimulatedMachine, clock: Clock) -> None:
        self._machine, self._clock = machine, clock

    async def run(self, card: GpuInfo) -> CardPreflight:
        """See :meth:`PreflightRunner.run`."""
        await self._clock.sleep(self._machine.latency("compute"))
        return self._test(card)

    async def run_quick(self, card: GpuInfo, _device: str) -> CardPreflight:
        """See :meth:`PreflightRunner.run_quick`."""
        await self._clock.sleep(min(self._machine.latency("compute"), QUICK_SECONDS))
        if self._machine.latency("compute") >= QUICK_SECONDS:
            return failed(card, f"no answer within {QUICK_SECONDS:g} s", tool="simulated")
        return self._test(card)

    def _test(self, card: GpuInfo) -> CardPreflight:
        try:
            self._machine.compute(card.uuid)
        except NvmlError as error:
            return failed(card, str(error), tool="simulated")
        return CardPreflight(uuid=card.uuid, index=card.index, product=card.name, tool="simulated")


class SimulatedPrograms:
    """See :class:`tessera.agent.main.satellites.NodePrograms`.

    Args:
        machine: the simulated machine.
        clock: the time.
    """

    def __init__(self, machine: SimulatedMachine, clock: Clock) -> None:
        self._machine, self._clock = machine, clock

    def preflight(self) -> SimulatedPreflight:
        """Returns what tests cards."""
        return SimulatedPreflight(self._machine, self._clock)

    def launcher(self, _root: Path) -> SimulatedLauncher:
        """Returns what starts MPS daemons."""
        return SimulatedLauncher(self._clock, self._machine)
