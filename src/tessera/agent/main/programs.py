"""What runs programs beside the agent: tests of cards, and MPS daemons."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from tessera.agent.base.options import AgentOptions
from tessera.agent.health.preflight_runner import PreflightRunner, ProcessPreflight
from tessera.agent.mps.interfaces import DaemonLauncher
from tessera.agent.mps.process_launcher import ProcessLauncher
from tessera.agent.mps.spawning import HostSpawner
from tessera.nvml.real.library import program_environment


class NodePrograms(Protocol):
    """The programs of one node; :mod:`tessera.agent.simulated` has those of simulated cards."""

    def preflight(self) -> PreflightRunner:
        """Returns what tests cards."""
        ...

    def launcher(self, root: Path, /) -> DaemonLauncher:
        """Returns what starts MPS daemons; ``root`` is their folder as this process sees it."""
        ...


class MachinePrograms:
    """The programs of a machine with real cards.

    Args:
        options: the agent's folders.
        driver_root: folder of the driver's programs, unless they are in the usual places.
    """

    def __init__(self, options: AgentOptions, driver_root: Path | None) -> None:
        self._options = options
        self._driver_root = driver_root

    def preflight(self) -> PreflightRunner:
        """See :meth:`NodePrograms.preflight`."""
        return ProcessPreflight({**os.environ, **(self._environment() or {})})

    def launcher(self, root: Path) -> DaemonLauncher:
        """See :meth:`NodePrograms.launcher`."""
        host = self._options.mps_host
        spawner = HostSpawner(host) if host is not None else None
        driver_root = self._driver_root or Path("/")
        return ProcessLauncher(root=root, driver_root=driver_root, environment=self._environment(), spawner=spawner)

    def _environment(self) -> Mapping[str, str] | None:
        """The variables by which programs find the driver's libraries; None in the usual places."""
        if self._driver_root is None:
            return None
        return program_environment(self._driver_root, self._options.state_dir / "driver-libraries")
