"""The simulated container runtime of a node: creates containers and runs their processes.

There are three sorts of containers. The injected entrypoint runs Tessera's own commands for real; an image may have a
program (:mod:`tessera_lab.kubelet.images.catalogue`); the runtime simulates the command of all others
(:mod:`tessera_lab.kubelet.containers.simulated_command`). The runtime resolves CDI devices as containerd does. A
running container that sees MIG devices has a simulated process with memory on each, so that nobody can destroy a slice
in use; a container that sees any card keeps the driver loaded.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import msgspec

from tessera.kubelet.interfaces import ContainerAllocateResponse
from tessera.nvml.errors import NvmlError
from tessera.nvml.interface import MigUuid
from tessera.nvml.simulated.simulated_machine import SimulatedMachine
from tessera_lab.kubelet.containers.cdi import CdiEdits, CdiRegistry
from tessera_lab.kubelet.containers.simulated_command import parse_command
from tessera_lab.kubelet.images.node_images import NodeImages
from tessera_lab.simulation.virtual_time import CountedClock

Json = Mapping[str, Any]

#: Environment variables that list a container's GPUs.
DEVICE_VARIABLES = ("NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")


class CreatedContainer(msgspec.Struct, frozen=True, kw_only=True):
    """A created container that has not started."""

    image: str
    argv: tuple[str, ...]
    env: Mapping[str, str]


class ContainerRuntime:
    """The containers of one node.

    Args:
        clock: the node's time; its ``pending`` counts waits that end by themselves.
        cdi: the node's CDI devices.
        machine: the machine with the cards; None for a node without GPUs.
        gpu_memory: bytes that a process takes on each MIG device.
        images: the node's images.

    Attributes:
        images: the node's images.
    """

    def __init__(
        self,
        *,
        clock: CountedClock,
        cdi: CdiRegistry,
        machine: SimulatedMachine | None,
        gpu_memory: int,
        images: NodeImages,
    ) -> None:
        self._clock = clock
        self._cdi = cdi
        self._machine = machine
        self._gpu_memory = gpu_memory
        self.images = images

    def create(
        self, image: str, argv: Sequence[str], env: Mapping[str, str], allocations: Sequence[ContainerAllocateResponse]
    ) -> CreatedContainer:
        """Creates a container.

        Args:
            image: its image.
            argv: command and arguments, expanded.
            env: environment from the pod's spec.
            allocations: Allocate responses of device plugins for it.

        Raises:
            CdiError: a CDI device does not exist.
        """
        merged: dict[str, str] = {}
        names: list[str] = []
        for allocation in allocations:
            merged |= allocation.envs
            names += allocation.cdi_devices
        edits: CdiEdits = self._cdi.edits(names)
        return CreatedContainer(image=image, argv=tuple(argv), env={**merged, **env, **edits.env})

    def log_head(self, created: CreatedContainer) -> list[str]:
        """Returns the first lines of a simulated container's log: that it is simulated, its devices and variables."""
        lines = [f"{name}={created.env[name]}" for name in sorted(created.env)]
        return [f"simulated container, image {created.image}, command {list(created.argv)}", *lines]

    async def run(self, created: CreatedContainer, log: Callable[[str], None]) -> int:
        """Runs a simulated container to its end and returns its exit code; cancel it to stop it.

        Raises:
            NvmlError: a MIG device that it sees does not exist, or no driver is loaded.
            MemoryError: a MIG device has too little memory left.
        """
        does = parse_command(created.image, created.argv)
        for line in does.output:
            log(line)
        with self._on_gpus(created.env):
            if does.seconds is None:
                await asyncio.Event().wait()
            elif does.seconds:
                await self._clock.sleep(does.seconds)
        return does.exit_code

    @contextmanager
    def _on_gpus(self, env: Mapping[str, str]) -> Iterator[None]:
        """Keeps the driver loaded, and a process on each visible MIG device, while the container runs."""
        pids: list[int] = []
        machine = self._machine
        if machine is None or not visible_devices(env):
            yield
            return
        end_session = machine.open_session()
        try:
            pids += [machine.start_process(MigUuid(uuid), self._gpu_memory) for uuid in visible_devices(env, "MIG-")]
            yield
        finally:
            for pid in pids:
                with suppress(NvmlError):  # the card was lost or reset, or the node rebooted: the process is gone too
                    machine.end_process(pid)
            end_session()


def visible_devices(env: Mapping[str, str], *prefixes: str) -> tuple[str, ...]:
    """Returns the UUIDs of cards and MIG devices in a container's environment; with prefixes, those that match one."""
    for name in DEVICE_VARIABLES:
        uuids = tuple(each for each in env.get(name, "").split(",") if each.startswith(prefixes or ("GPU-", "MIG-")))
        if uuids:
            return uuids
    return ()
