"""Starts a container: as a real process of Tessera (through the injected entrypoint), or as its image's program."""

import asyncio
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from tessera.clock import Clock
from tessera.nvml.simulated.simulated_machine import SimulatedMachine
from tessera_lab.kubelet.containers.runtime import CreatedContainer
from tessera_lab.kubelet.context import ContainerContext, Entrypoint, GrpcPlugins, InProcessPlugins, KubeletOptions
from tessera_lab.kubelet.images.catalogue import ImageProgram
from tessera_lab.kubelet.images.image_programs import ProgramContext, RunClock
from tessera_lab.kubelet.images.node_images import NodeImages
from tessera_lab.simulation.virtual_time import CountedClock

Json = Mapping[str, Any]


class LauncherNode(Protocol):
    """The node on which a launcher starts containers.

    Attributes:
        name: the node's name.
        machine: its cards; None for a node without.
        plugins: how device plugins connect to it.
        options: its options; the launcher reads the architecture.
        kernel: ``uname -r`` of the running kernel.
        waits: its clock for waits that virtual time may skip.
    """

    name: str
    machine: SimulatedMachine | None
    plugins: InProcessPlugins | GrpcPlugins
    options: KubeletOptions
    kernel: str
    waits: CountedClock

    @property
    def markers(self) -> Path | None:
        """The node's ``/run/nvidia/validations``; None if it has no folders."""
        ...

    def reboot(self) -> None:
        """Reboots the node."""
        ...


class Launcher:
    """Starts the containers of one node that run a process or a program.

    Args:
        node: the node.
        entrypoint: runs Tessera's own containers; None leaves them to their image.
        images: the node's images.
        clock: the node's time.
    """

    def __init__(self, node: LauncherNode, *, entrypoint: Entrypoint | None, images: NodeImages, clock: Clock) -> None:
        self._node = node
        self._entrypoint = entrypoint
        self._images = images
        self._clock = clock

    def start_real(
        self, pod: Json, pod_ip: str, container: str, created: CreatedContainer, log: Callable[[str], None]
    ) -> asyncio.Task[int] | None:
        """Starts one of Tessera's own processes; None for any other container."""
        if self._entrypoint is None or not runs_tessera(created.argv):
            return None
        metadata = pod["metadata"]
        context = ContainerContext(
            argv=created.argv,
            env=created.env,
            namespace=metadata["namespace"],
            pod=metadata["name"],
            pod_uid=metadata["uid"],
            container=container,
            service_account=pod["spec"].get("serviceAccountName") or "default",
            node=self._node.name,
            pod_ip=pod_ip,
            machine=self._node.machine,
            plugins=self._node.plugins,
            markers=self._node.markers,
            clock=self._clock,
            reboot=self._node.reboot,
            log=log,
        )
        return asyncio.create_task(exit_code(self._entrypoint, context))

    def start_program(
        self, pod: Json, created: CreatedContainer, log: Callable[[str], None]
    ) -> tuple[ImageProgram, ProgramContext] | None:
        """Returns the program of a container's image and its context; None if the image has none."""
        image = self._images.image(created.image)
        if image is None or image.program is None:
            return None
        context = ProgramContext(
            argv=created.argv,
            env=created.env,
            image=created.image,
            namespace=pod["metadata"]["namespace"],
            pod=pod["metadata"]["name"],
            node=self._node.name,
            kernel=self._node.kernel,
            architecture=self._node.options.architecture,
            machine=self._node.machine,
            markers=self._node.markers,
            plugins=self._node.plugins,
            clock=RunClock(self._node.waits),
            log=log,
        )
        return image.program, context


#: Tessera's commands that the lab runs as real processes.
OWN_COMMANDS = frozenset({"agent", "controller", "webhook"})


def runs_tessera(argv: Sequence[str]) -> bool:
    """True if the container is one of Tessera's processes."""
    return len(argv) > 1 and argv[0].rsplit("/", 1)[-1] == "tessera" and argv[1] in OWN_COMMANDS


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
