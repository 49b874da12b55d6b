"""Programs of images: coroutines that simulate a container, with time, cards and files of its node.

A program reports that it is healthy (:meth:`ProgramContext.ready`); kubelet's probes
(:mod:`tessera_lab.kubelet.containers.probes`) notice this at their next tick. Kubelet stops a program by cancelling it.
The program's ``finally`` block is its preStop hook and may wait on the context's clock until the pod's grace period is
over. A machine that goes down does not wait for programs.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from tessera.nvml.errors import NvmlError
from tessera_lab.kubelet.context import ContainerHost, PodIdentity
from tessera_lab.simulation.virtual_time import CountedClock

#: Exit code of a program that raised an unexpected error.
FAILED_EXIT = 1


class ProgramHealth:
    """Health of a program, and the action of its startup probe.

    Attributes:
        ok: true if a probe would succeed now.
        on_started: called when the startup probe first succeeds.
    """

    def __init__(self) -> None:
        self.ok = False
        self.on_started: Callable[[], None] = lambda: None
        self._changed = asyncio.Event()

    def set(self, ok: bool) -> None:
        """Sets the result of later probes."""
        self.ok = ok
        self._changed.set()

    async def becomes(self, ok: bool) -> None:
        """Returns when a probe would have the result ``ok``."""
        while self.ok is not ok:
            self._changed.clear()
            await self._changed.wait()


class RunClock(CountedClock):
    """The clock of one run of a program; a sleep on it never ends once the machine went down.

    Attributes:
        stopped: true if the run is over; the program cannot continue.
    """

    stopped = False

    async def sleep(self, seconds: float) -> None:
        """See :meth:`.Clock.sleep`."""
        if self.stopped:
            raise asyncio.CancelledError
        await super().sleep(seconds)


@dataclass(frozen=True, kw_only=True)
class ProgramContext:
    """Context of a running program.

    Attributes:
        argv: command and arguments, ``$(VAR)`` expanded; empty for the image's own command.
        env: its environment.
        image: the reference that the pod's spec has.
        pod: the pod of the container.
        host: its node.
        clock: simulated time; a lab on virtual time may skip sleeps on it.
        log: adds a line to the container's log.
        health: see :meth:`ready` and :meth:`set_startup_hook`.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    image: str
    pod: PodIdentity
    host: ContainerHost
    clock: RunClock
    log: Callable[[str], None]
    health: ProgramHealth = field(default_factory=ProgramHealth)

    def ready(self, ok: bool = True) -> None:
        """Sets the result of later probes of the container."""
        self.health.set(ok)

    def set_startup_hook(self, hook: Callable[[], None]) -> None:
        """Sets the action of the container's startup probe at its first success, such as writing a marker."""
        self.health.on_started = hook


async def exit_code(program: Callable[[ProgramContext], Awaitable[int]], context: ProgramContext) -> int:
    """Runs a program to its end; after an unexpected error writes the reason to its log and returns 1."""
    try:
        return await program(context)
    except (NvmlError, OSError, ValueError) as error:
        context.log(f"simulated: {type(error).__name__}: {error}")
        return FAILED_EXIT
