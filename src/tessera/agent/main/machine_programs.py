"""The programs that an agent runs beside itself: tests of cards, and MPS daemons; simulated with simulated cards."""

import os
from collections.abc import Mapping
from pathlib import Path

from tessera.agent.base.options import AgentOptions
from tessera.agent.mps.interfaces import DaemonLauncher
from tessera.agent.mps.process_launcher import ProcessLauncher
from tessera.agent.mps.simulated import SimulatedLauncher
from tessera.agent.mps.spawning import HostSpawner
from tessera.agent.validation.preflight_runner import PreflightRunner, ProcessPreflight, SimulatedPreflight
from tessera.clock import Clock
from tessera.nvml.asynchronous.async_nvml import AsyncNvml
from tessera.nvml.real.library import program_environment


class MachinePrograms:
    """Makes the runners of these programs for one node.

    Args:
        options: the agent's folders.
        hardware: the node's cards.
        clock: the time of simulated programs.
        driver_root: folder of the driver's programs, unless they are in the usual places.
    """

    def __init__(self, options: AgentOptions, hardware: AsyncNvml, clock: Clock, driver_root: Path | None) -> None:
        self._options = options
        self._hardware = hardware
        self._clock = clock
        self._driver_root = driver_root

    def preflight(self) -> PreflightRunner:
        """Returns what tests cards."""
        if self._hardware.machine is not None:
            return SimulatedPreflight(self._hardware.machine, self._clock)
        return ProcessPreflight({**os.environ, **(self._environment() or {})})

    def launcher(self, root: Path) -> DaemonLauncher:
        """Returns what starts MPS daemons; ``root`` is their folder as this process sees it."""
        if self._hardware.machine is not None:
            return SimulatedLauncher(self._clock, self._hardware.machine)
        host = self._options.mps_host
        spawner = HostSpawner(host) if host is not None else None
        driver_root = self._driver_root or Path("/")
        return ProcessLauncher(root=root, driver_root=driver_root, environment=self._environment(), spawner=spawner)

    def _environment(self) -> Mapping[str, str] | None:
        """The variables by which programs find the driver's libraries; None in the usual places."""
        if self._driver_root is None:
            return None
        return program_environment(self._driver_root, self._options.state_dir / "driver-libraries")
