"""The simulated container runtime of a node: creates containers and runs their processes.

There are three sorts of containers. The injected entrypoint runs Tessera's own commands for real; an image may have a
program (:mod:`tessera_lab.kubelet.images.catalogue`); the runtime interprets the command of all others. It resolves CDI
devices as containerd does. A running container that sees MIG devices has a simulated process with memory on each, so
that nobody can destroy a slice in use; a container that sees any card keeps the driver loaded
(:mod:`tessera_lab.kubelet.containers.gpu_processes`). A container with a share by MPS is a client of the simulated
daemon, and fails when that ends.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from tessera.agent.mps.state import CONTAINER_ROOT, PIPE_VARIABLE
from tessera.kubelet.interfaces import ContainerAllocateResponse
from tessera_lab.kubelet.containers.commands import CommandBehaviour, Surroundings, parse_command, visible_devices
from tessera_lab.kubelet.containers.environment import CdiEdits, CdiRegistry
from tessera_lab.kubelet.containers.gpu_processes import SIGNALLED, ContainerOwner, GpuProcesses
from tessera_lab.kubelet.images.catalogue import image_variables
from tessera_lab.kubelet.images.node_images import NodeImages
from tessera_lab.kubelet.servers.behaviour import HttpBehaviour
from tessera_lab.kubelet.servers.server import SimulatedServers
from tessera_lab.simulation.virtual_time import CountedClock

Json = Mapping[str, Any]


class CreatedContainer(msgspec.Struct, frozen=True, kw_only=True):
    """A created container that has not started."""

    image: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    server: HttpBehaviour | None = None


class _Running(msgspec.Struct):
    """A simulated container that runs: its task, and the exit code once a signal has ended it."""

    task: asyncio.Task[Any] | None
    ended: int | None = None


class ContainerRuntime:
    """The containers of one node.

    Args:
        clock: the node's time; its ``pending`` counts waits that end by themselves.
        cdi: the node's CDI devices.
        processes: the processes on the node's cards; None for a node without GPUs.
        gpu_memory: bytes that a process takes on each MIG device.
        images: the node's images.

    Attributes:
        obeys_images: a container gets the cards that its image names, as by the defaults of NVIDIA's runtime; false as
            with ``accept-nvidia-visible-devices-envvar-when-unprivileged = false``.
        images: the node's images.
        servers: the servers of its simulated containers.
    """

    def __init__(
        self,
        *,
        clock: CountedClock,
        cdi: CdiRegistry,
        processes: GpuProcesses | None,
        gpu_memory: int,
        images: NodeImages,
    ) -> None:
        self._clock = clock
        self._cdi = cdi
        self._processes = processes
        self._gpu_memory = gpu_memory
        self.images = images
        self.obeys_images = False
        self.servers = SimulatedServers(clock)
        #: The simulated containers that run, by pod's UID and name.
        self._running: dict[tuple[str, str], _Running] = {}

    def create(
        self,
        image: str,
        argv: Sequence[str],
        env: Mapping[str, str],
        allocations: Sequence[ContainerAllocateResponse],
        server: HttpBehaviour | None = None,
    ) -> CreatedContainer:
        """Creates a container. Its variables are those of the image, of device plugins, of the spec, and of CDI.

        Args:
            image: its image.
            argv: command and arguments, expanded.
            env: environment from the pod's spec.
            allocations: Allocate responses of device plugins for it.
            server: the server that it declares.

        Raises:
            CdiError: a CDI device does not exist.
        """
        merged = dict(image_variables(image))
        names: list[str] = []
        for allocation in allocations:
            merged |= allocation.envs
            names += allocation.cdi_devices
        edits: CdiEdits = self._cdi.edits(names)
        return CreatedContainer(image=image, argv=tuple(argv), env={**merged, **env, **edits.env}, server=server)

    def log_head(self, created: CreatedContainer) -> list[str]:
        """Returns the first lines of a simulated container's log: that it is simulated, its devices and variables."""
        lines = [f"{name}={created.env[name]}" for name in sorted(created.env)]
        return [f"simulated container, image {created.image}, command {list(created.argv)}", *lines]

    async def run(
        self, created: CreatedContainer, owner: ContainerOwner, log: Callable[[str], None], address: str = ""
    ) -> int:
        """Runs a simulated container to its end and returns its exit code; cancel it to stop it.

        Args:
            created: the container.
            owner: its pod and name.
            log: adds a line to its log.
            address: the address of this machine that its pod has; empty for none.

        Raises:
            NvmlError: a MIG device that it sees does not exist, or no driver is loaded.
            MemoryError: a MIG device has too little memory left.
        """
        does = parse_command(created.image, created.argv, self.surroundings(owner.pod, created.env))
        for line in (*does.output, *does.errors):
            log(line)
        running = _Running(asyncio.current_task())
        self._running[owner.uid, owner.container] = running
        try:
            async with self.servers.running(owner.uid, created.server, address, log):
                return await self._work(created, does, owner, log)
        except asyncio.CancelledError:
            if running.ended is None or running.task is None:
                raise
            running.task.uncancel()
            return running.ended
        finally:
            del self._running[owner.uid, owner.container]

    def signal(self, pod: str, container: str, number: int) -> bool:
        """Ends a simulated container by a signal; False if it does not run.

        Args:
            pod: UID of its pod.
            container: its name.
            number: the signal's.
        """
        running = self._running.get((pod, container))
        if running is None or running.task is None:
            return False
        running.ended = SIGNALLED + number
        return running.task.cancel()

    async def _work(
        self, created: CreatedContainer, does: CommandBehaviour, owner: ContainerOwner, log: Callable[[str], None]
    ) -> int:
        devices = visible_devices(created.env) or self._named_by_image(created)
        if self._processes is None or not devices:
            await self._wait(does.seconds)
            return does.exit_code
        resource = mps_resource(created.env)
        with self._processes.running(owner, devices, self._gpu_memory, resource) as container:
            work = asyncio.ensure_future(self._wait(does.seconds))
            try:
                await asyncio.wait((work, container.ended), return_when=asyncio.FIRST_COMPLETED)
            finally:
                work.cancel()
            if resource and container.ended.done():
                log(f"simulated: the MPS daemon of {resource} is gone, or a signal came")
            return container.ended.result() if container.ended.done() else does.exit_code

    def _named_by_image(self, created: CreatedContainer) -> tuple[str, ...]:
        asks = self.obeys_images and created.env.get("NVIDIA_VISIBLE_DEVICES") == "all"
        return tuple(self._processes.machine.uuids()) if asks and self._processes is not None else ()

    def surroundings(self, pod: str, env: Mapping[str, str]) -> Surroundings:
        """What a command finds in a container of a pod that has these variables."""
        nvml = None if self._processes is None else self._processes.machine
        return Surroundings(env=env, hostname=pod, nvml=nvml, now=self._clock.now())

    async def _wait(self, seconds: float | None) -> None:
        """Waits as long as a command runs; None for ever."""
        if seconds is None:
            await asyncio.Event().wait()
        elif seconds:
            await self._clock.sleep(seconds)


def mps_resource(env: Mapping[str, str]) -> str:
    """Returns the resource whose MPS daemon a container is a client of; empty for none."""
    path = env.get(PIPE_VARIABLE, "")
    return path.removeprefix(f"{CONTAINER_ROOT}/").removesuffix("/pipe") if path else ""
