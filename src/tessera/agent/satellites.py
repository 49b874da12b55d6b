"""What runs beside the core in the agent's process or on its node: satellites, tests of cards, and MPS daemons.

The core starts satellites, and knows none of them. Each has a base class here that does nothing, which serves where the
satellite is left out.
"""

import os
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tessera.agent.base.runtime import AgentRuntime, MemoryUsage
from tessera.agent.base.settings import AgentOptions
from tessera.agent.health.repairs import PreflightRunner, ProcessPreflight
from tessera.agent.inventory.device_state import DeviceUser
from tessera.agent.inventory.sliceable_gpus import SliceableGpus, SlicePosition
from tessera.agent.mps.daemons import MpsDaemons
from tessera.agent.mps.process_launcher import ProcessLauncher
from tessera.agent.mps.spawning import HostSpawner
from tessera.agent.mps.state import DaemonLauncher
from tessera.agent.slices.further_ways import NodeSlices, SliceGiver
from tessera.api.names import PodUid
from tessera.api.nodes.usage import ServiceUsage
from tessera.api.sharing.devices import Advertisement
from tessera.kube.resources import Pod
from tessera.nvml.real.library import program_environment


@dataclass(frozen=True, kw_only=True)
class MemoryInputs:
    """Inputs of a memory watch from the rest of the agent.

    Attributes:
        offer: the present offer of the static cards.
        api_reachable: true if the API server answers.
        live_pods: the pods of the node that have not ended.
        read_users: the containers that hold each device; raises ConnectionError if kubelet does not answer.
        cards: the cards that are cut on demand or divided for claims.
        held: the slices and shares of each pod.
    """

    offer: Callable[[], Advertisement]
    api_reachable: Callable[[], bool]
    live_pods: Callable[[], Sequence[Pod]]
    read_users: Callable[[], Awaitable[Mapping[str, Sequence[DeviceUser]]]]
    cards: Callable[[], SliceableGpus]
    held: Callable[[], Iterable[tuple[PodUid, SlicePosition]]]


class MemoryWatch:
    """Watches the memory of shared cards. This one does not."""

    def memory_usage(self) -> Sequence[MemoryUsage]:
        """Memory of shared cards by pod, of the last sample."""
        return ()

    async def run(self) -> None:
        """Samples until cancelled."""


class LoadReader:
    """Reads the load of services from the node's pods. This one reads none.

    Attributes:
        usages: the last reading of each pod.
    """

    usages: Sequence[ServiceUsage] = ()

    async def run(self) -> None:
        """Reads until cancelled."""


#: Makes a further way to give a node's slices, which may want MPS daemons.
MakeNodeGiver = Callable[[AgentRuntime, NodeSlices, MpsDaemons], SliceGiver]


@dataclass(frozen=True, kw_only=True)
class NodeSatellites:
    """The satellites of an agent; the core alone without arguments.

    Attributes:
        giver: makes a further way to give slices; ``None`` for the device plugins alone.
        memory: makes what watches the memory of shared cards.
        loads: makes what reads the load of services; its second argument tells the UIDs of pods that hold cards.
    """

    giver: MakeNodeGiver | None = None
    memory: Callable[[AgentRuntime, MemoryInputs], MemoryWatch] | None = None
    loads: Callable[[AgentRuntime, Callable[[], Collection[str]]], LoadReader] | None = None


#: An agent without satellites.
CORE_ALONE = NodeSatellites()


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
