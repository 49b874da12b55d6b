"""The driver of a simulated machine, and what runs programs on its cards.

The agent knows none of it: whoever starts it with simulated cards gives it these.
"""

import asyncio
from pathlib import Path

from tessera.agent.base.change_notifier import ChangeNotifier, Fact
from tessera.agent.driver.hardware import DriverHome
from tessera.agent.health.preflight_runner import QUICK_SECONDS, failed
from tessera.agent.simulated.mps import SimulatedLauncher
from tessera.api.nodes.driver_status import DRIVER_CONTAINER_READY
from tessera.api.nodes.preflights import CardPreflight
from tessera.clock import Clock
from tessera.nvml.asynchronous import AsyncNvml
from tessera.nvml.errors import NvmlError
from tessera.nvml.interface import GpuInfo
from tessera.nvml.simulated.inline import InlineNvml
from tessera.nvml.simulated.simulated_machine import SimulatedMachine


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
