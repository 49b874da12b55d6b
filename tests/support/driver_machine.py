"""Programs of images on one simulated machine, without a cluster."""

import asyncio
from pathlib import Path
from typing import Any

from tessera.clock import LoopClock
from tessera.nvml.simulated.simulated_machine import SimulatedMachine
from tessera_lab.kubelet.context import ContainerHost, InProcessPlugins, PodIdentity
from tessera_lab.kubelet.images.catalogue import ImageProgram, ProgramContext, RunClock, exit_code

KERNEL = "5.14.0-284.54.1.el9_2.x86_64"


class ContainerRun:
    """One run of an image's program."""

    def __init__(self, program: ImageProgram, folder: Path, machine: SimulatedMachine | None, **given: Any) -> None:
        self.clock = RunClock(LoopClock(0))
        self.log: list[str] = []
        host = ContainerHost(
            name="n1",
            kernel=given.pop("kernel", KERNEL),
            architecture="amd64",
            machine=machine,
            plugins=InProcessPlugins(),
            markers=given.pop("markers", folder),
            reboot=lambda: None,
        )
        values: dict[str, Any] = {"argv": (), "env": {}, "image": "image"} | given
        pod = PodIdentity(namespace="default", name=values.pop("pod", "p"))
        self.context = ProgramContext(pod=pod, host=host, clock=self.clock, log=self.log.append, **values)
        self.task = asyncio.create_task(exit_code(program, self.context))

    async def healthy(self) -> float:
        """Waits until a probe would succeed, runs the first one, and returns the time."""
        await self.context.health.becomes(True)
        self.context.health.on_started()
        return self.clock.monotonic()

    async def ends(self) -> tuple[int, float]:
        """Returns the exit code and the time."""
        return await self.task, self.clock.monotonic()

    async def stop(self) -> float:
        """Stops it as kubelet does; returns the time of its end."""
        self.task.cancel()
        await asyncio.wait([self.task])
        return self.clock.monotonic()


class DriverMachine:
    """A machine with a T4 and no driver, and its folder of marker files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.machine = SimulatedMachine("1xT4", seed="n1", driver=None)

    def run(self, program: ImageProgram, **given: Any) -> ContainerRun:
        return ContainerRun(program, self.folder, given.pop("machine", self.machine), **given)

    @property
    def markers(self) -> list[str]:
        return sorted(each.name for each in self.folder.iterdir())
