"""The simulated container runtime of a node: images, container creation, processes.

A container is either run for real by the injected entrypoint (Tessera's own commands) or simulated as
:mod:`tessera.lab.kubelet.program` says. Creating one resolves its CDI devices like containerd. A running container that
sees MIG devices has a simulated process with memory on each, so that a slice in use cannot be destroyed.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import msgspec

from tessera.clock import Clock
from tessera.kubelet.seam import Allocation
from tessera.lab.kubelet.cdi import CdiRegistry, Edits
from tessera.lab.kubelet.program import program
from tessera.nvml.errors import NvmlError
from tessera.nvml.hardware import SimulatedHardware
from tessera.nvml.interface import MigUuid

Json = Mapping[str, Any]

#: The variables in which a container finds its GPUs.
DEVICE_VARIABLES = ("NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")


class Created(msgspec.Struct, frozen=True, kw_only=True):
    """A container that may be started."""

    image: str
    argv: tuple[str, ...]
    env: Mapping[str, str]


class Runtime:
    """The containers of one node.

    Args:
        clock: how long things take.
        cdi: the node's CDI devices.
        machine: whose cards containers compute on; None for a node without GPUs.
        gpu_memory: bytes that a process takes on each MIG device.
        pull_seconds: how long an image takes to arrive.
        images: those that are there already.

    Attributes:
        pending: waits now under way that are sure to end by themselves: pulls and programs with an end.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        cdi: CdiRegistry,
        machine: SimulatedHardware | None,
        gpu_memory: int,
        pull_seconds: float,
        images: Iterable[str] = (),
    ) -> None:
        self._clock = clock
        self._cdi = cdi
        self._machine = machine
        self._gpu_memory = gpu_memory
        self._pull_seconds = pull_seconds
        self._images = set(images)
        self._pulls: dict[str, asyncio.Future[None]] = {}
        self.pending = 0

    def has_image(self, image: str, policy: str) -> bool:
        """Whether the image need not be pulled."""
        return policy == "Never" or (policy != "Always" and image in self._images)

    async def pull(self, image: str) -> float:
        """Fetches an image; pods that wait for the same one share the pull. Returns seconds waited.

        An image that the node has is only looked up again (``imagePullPolicy: Always``), which takes no time here.
        """
        began = self._clock.monotonic()
        running = self._pulls.get(image)
        if running is not None:
            await asyncio.shield(running)
        elif self._pull_seconds and image not in self._images:
            done = self._pulls[image] = asyncio.get_running_loop().create_future()
            try:
                with self._simulated_work():
                    await self._clock.sleep(self._pull_seconds)
            finally:
                del self._pulls[image]
                done.set_result(None)
        self._images.add(image)
        return self._clock.monotonic() - began

    def create(
        self, image: str, argv: Sequence[str], env: Mapping[str, str], allocations: Sequence[Allocation]
    ) -> Created:
        """Makes a container.

        Args:
            image: what it runs.
            argv: command and arguments, expanded.
            env: the environment of the pod's spec.
            allocations: what device plugins answered for it.

        Raises:
            CdiError: a CDI device is not there.
        """
        merged: dict[str, str] = {}
        names: list[str] = []
        for allocation in allocations:
            merged |= allocation.envs
            names += allocation.cdi_devices
        edits: Edits = self._cdi.edits(names)
        return Created(image=image, argv=tuple(argv), env={**merged, **env, **edits.env})

    def log_head(self, created: Created) -> list[str]:
        """What the log of a simulated container begins with: that it is simulated, and what it was given."""
        lines = [f"{name}={created.env[name]}" for name in sorted(created.env)]
        return [f"simulated container, image {created.image}, command {list(created.argv)}", *lines]

    async def run(self, created: Created, log: Callable[[str], None]) -> int:
        """Runs a simulated container to its end and returns its exit code; cancel it to stop it.

        Raises:
            NvmlError: a MIG device that it sees is not there.
            MemoryError: a MIG device has too little memory left.
        """
        does = program(created.image, created.argv)
        for line in does.output:
            log(line)
        with self._on_gpus(created.env):
            if does.seconds is None:
                await asyncio.Event().wait()
            elif does.seconds:
                with self._simulated_work():
                    await self._clock.sleep(does.seconds)
        return does.exit_code

    @contextmanager
    def _on_gpus(self, env: Mapping[str, str]) -> Iterator[None]:
        """The container's processes on the MIG devices that it sees, for as long as it runs."""
        pids: list[int] = []
        machine = self._machine
        if machine is None:
            yield
            return
        try:
            pids += [machine.start_process(MigUuid(uuid), self._gpu_memory) for uuid in mig_devices(env)]
            yield
        finally:
            for pid in pids:
                with suppress(NvmlError):  # the card was lost, reset or rebooted, and the process with it
                    machine.end_process(pid)

    @contextmanager
    def _simulated_work(self) -> Iterator[None]:
        self.pending += 1
        try:
            yield
        finally:
            self.pending -= 1


def mig_devices(env: Mapping[str, str]) -> tuple[str, ...]:
    """The MIG UUIDs that a container's environment names."""
    for name in DEVICE_VARIABLES:
        uuids = tuple(each for each in env.get(name, "").split(",") if each.startswith("MIG-"))
        if uuids:
            return uuids
    return ()
