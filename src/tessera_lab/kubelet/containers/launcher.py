"""Starts a container: as a real process of Tessera (through the injected entrypoint), or as its image's program."""

import asyncio
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tessera.clock import Clock
from tessera.nvml.simulated.simulated_machine import SimulatedMachine
from tessera_lab.kubelet.containers.runtime import CreatedContainer
from tessera_lab.kubelet.context import ContainerContext, Entrypoint, GrpcPlugins, InProcessPlugins
from tessera_lab.kubelet.images.catalogue import ImageProgram
from tessera_lab.kubelet.images.image_programs import ProgramContext, RunClock
from tessera_lab.kubelet.images.node_images import NodeImages
from tessera_lab.simulation.virtual_time import CountedClock

Json = Mapping[str, Any]


class Launcher:
    """Starts the containers of one node that do something.

    Args:
        node: the node's name.
        entrypoint: runs Tessera's own containers; None leaves them to their image.
        images: the node's images.
        machine: the node's cards.
        plugins: how device plugins join.
        markers: the node's ``/run/nvidia/validations``.
        clock: the node's time.
        waits: the same, for waits over which a lab may leap.
        architecture: the node's.
        kernel: what runs now.
        reboot: reboots the node.
    """

    def __init__(
        self,
        node: str,
        *,
        entrypoint: Entrypoint | None,
        images: NodeImages,
        machine: SimulatedMachine | None,
        plugins: InProcessPlugins | GrpcPlugins,
        markers: Path | None,
        clock: Clock,
        waits: CountedClock,
        architecture: str,
        kernel: Callable[[], str],
        reboot: Callable[[], None],
    ) -> None:
        self._node = node
        self._entrypoint = entrypoint
        self._images = images
        self._machine = machine
        self._plugins = plugins
        self._markers = markers
        self._clock = clock
        self._waits = waits
        self._architecture = architecture
        self._kernel = kernel
        self._reboot = reboot

    def start_real(
        self, pod: Json, pod_ip: str, container: str, created: CreatedContainer, log: Callable[[str], None]
    ) -> asyncio.Task[int] | None:
        """Starts one of Tessera's own processes; None for a container that is none."""
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
            node=self._node,
            pod_ip=pod_ip,
            machine=self._machine,
            plugins=self._plugins,
            markers=self._markers,
            clock=self._clock,
            reboot=self._reboot,
            log=log,
        )
        return asyncio.create_task(exit_code(self._entrypoint, context))

    def start_program(
        self, pod: Json, created: CreatedContainer, log: Callable[[str], None]
    ) -> tuple[ImageProgram, ProgramContext] | None:
        """The program of a container's image and what it is given; None if the image has none."""
        image = self._images.image(created.image)
        if image is None or image.program is None:
            return None
        context = ProgramContext(
            argv=created.argv,
            env=created.env,
            image=created.image,
            namespace=pod["metadata"]["namespace"],
            pod=pod["metadata"]["name"],
            node=self._node,
            kernel=self._kernel(),
            architecture=self._architecture,
            machine=self._machine,
            markers=self._markers,
            plugins=self._plugins,
            clock=RunClock(self._waits),
            log=log,
        )
        return image.program, context


#: Tessera's commands that are run for real.
OWN_COMMANDS = frozenset({"agent", "controller", "webhook"})


def runs_tessera(argv: Sequence[str]) -> bool:
    """Whether the container is one of Tessera's processes."""
    return len(argv) > 1 and argv[0].rsplit("/", 1)[-1] == "tessera" and argv[1] in OWN_COMMANDS


async def exit_code(entrypoint: Entrypoint, context: ContainerContext) -> int:
    """Runs the process to its end; one that raises ends with 1 and its traceback in the container's log."""
    try:
        return await entrypoint(context)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    except Exception:  # noqa: BLE001 - a process that dies ends its container, not the lab
        for line in traceback.format_exc().splitlines():
            context.log(line)
        return 1
