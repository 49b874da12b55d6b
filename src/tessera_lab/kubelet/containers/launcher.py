"""Starts a container: as a real process of Tessera (through the injected entrypoint), or as its image's program."""

import asyncio
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tessera.clock import Clock
from tessera.nvml.simulated.simulated_machine import SimulatedMachine
from tessera_lab.kubelet.containers.runtime import ContainerRuntime, CreatedContainer
from tessera_lab.kubelet.context import ContainerContext, ContainerHost, Entrypoint, PodIdentity
from tessera_lab.kubelet.images.catalogue import ImageCatalogue, ImageProgram, ProgramContext, RunClock
from tessera_lab.simulation.virtual_time import CountedClock

Json = Mapping[str, Any]


class LauncherNode(Protocol):
    """The node on which a launcher starts containers.

    Attributes:
        waits: its clock for waits that virtual time may skip.
    """

    waits: CountedClock

    def host(self) -> ContainerHost:
        """Returns the node as a container that starts now reaches it."""
        ...


@dataclass(frozen=True, kw_only=True)
class NodeSoftware:
    """Programs that a node's containers can run.

    Attributes:
        entrypoint: runs Tessera's own containers; None simulates them like others.
        catalogue: images of all registries; None for images that have neither size nor program.
    """

    entrypoint: Entrypoint | None = None
    catalogue: ImageCatalogue | None = None


class Launcher:
    """Starts the containers of one node that run a process or a program.

    Args:
        node: the node.
        entrypoint: runs Tessera's own containers; None leaves them to their image.
        runtime: the node's container runtime, which runs all others.
        clock: the node's time.

    Attributes:
        runtime: the node's container runtime.
    """

    def __init__(
        self, node: LauncherNode, *, entrypoint: Entrypoint | None, runtime: ContainerRuntime, clock: Clock
    ) -> None:
        self.runtime = runtime
        self._node = node
        self._entrypoint = entrypoint
        self._clock = clock

    def start_real(
        self,
        pod: Json,
        pod_ip: str,
        container: str,
        created: CreatedContainer,
        *,
        log: Callable[[str], None],
        ready: Callable[[], None],
    ) -> asyncio.Task[int] | None:
        """Starts one of Tessera's own processes; None for any other container, and if its image runs it."""
        host = self._node.host()
        if runs_mps_host(created.argv) and host.machine is not None:
            return asyncio.create_task(run_mps_host(host.machine))
        if self._entrypoint is None or not self._is_real(created):
            return None
        context = ContainerContext(
            argv=created.argv,
            env=created.env,
            pod=_identity(pod, pod_ip),
            container=container,
            host=host,
            clock=self._clock,
            log=log,
            ready=ready,
        )
        return asyncio.create_task(exit_code(self._entrypoint, context))

    def pods_listen(self) -> bool:
        """True if the addresses of the node's pods are addresses of this machine."""
        return self._node.host().plugins.directories is not None

    def reports_readiness(self, created: CreatedContainer) -> bool:
        """True if the process itself calls ``ready``: an agent, which an update may start beside another one.

        The lab runs no probes of the processes in its own process; all others are ready from their start.
        """
        return self._entrypoint is not None and self._is_real(created) and created.argv[1] == "agent"

    def _is_real(self, created: CreatedContainer) -> bool:
        if not runs_tessera(created.argv):
            return False
        image = self.runtime.images.image(created.image)
        return image is None or not image.has_tessera

    def start_program(
        self, pod: Json, pod_ip: str, created: CreatedContainer, log: Callable[[str], None]
    ) -> tuple[ImageProgram, ProgramContext] | None:
        """Returns the program of a container's image and its context; None if the image has none."""
        image = self.runtime.images.image(created.image)
        if image is None or image.program is None:
            return None
        context = ProgramContext(
            argv=created.argv,
            env=created.env,
            image=created.image,
            pod=_identity(pod, pod_ip),
            host=self._node.host(),
            clock=RunClock(self._node.waits),
            log=log,
        )
        return image.program, context


def _identity(pod: Json, ip: str) -> PodIdentity:
    metadata = pod["metadata"]
    account = pod["spec"].get("serviceAccountName") or "default"
    return PodIdentity(
        namespace=metadata["namespace"], name=metadata["name"], uid=metadata["uid"], ip=ip, service_account=account
    )


#: Tessera's commands that the lab runs as real processes.
OWN_COMMANDS = frozenset({"agent", "controller", "webhook", "driver", "operator", "dashboard", "uninstall", "accept"})


def runs_tessera(argv: Sequence[str]) -> bool:
    """True if the container is one of Tessera's processes."""
    return len(argv) > 1 and argv[0].rsplit("/", 1)[-1] == "tessera" and argv[1] in OWN_COMMANDS


def runs_mps_host(argv: Sequence[str]) -> bool:
    """True if the container is an MPS host, of whatever version."""
    return len(argv) > 1 and argv[0].rsplit("/", 1)[-1] == "tessera" and argv[1] == "mps-host"


async def run_mps_host(machine: SimulatedMachine) -> int:
    """Simulates an MPS host: on simulated cards daemons are simulated too, and end with its container."""
    machine.set_mps_host(True)
    try:
        await asyncio.Event().wait()
    finally:
        machine.set_mps_host(False)
    return 0


async def exit_code(entrypoint: Entrypoint, context: ContainerContext) -> int:
    """Runs the process to its end; if it raises, writes the traceback to the container's log and returns 1."""
    try:
        return await entrypoint(context)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    except Exception:  # noqa: BLE001 - a process that dies ends its container, not the lab
        for line in traceback.format_exc().splitlines():
            context.log(line)
        return 1
