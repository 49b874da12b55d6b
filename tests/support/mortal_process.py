"""A cluster in which one of Tessera's processes dies at a given step.

A process that dies here is dead: whatever it still tries after the point of death is refused, no lease is released. The
simulated kubelet restarts its container as on any node.
"""

import asyncio
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any

from tests.support.searching import SEARCHING
from tests.support.virtual_lab import VirtualLab

from tessera.kube.client import Client
from tessera.kube.requests import Request, Response, Stream, Transport
from tessera.nvml.interface import Nvml
from tessera.nvml.simulated.simulated_machine import SimulatedMachine
from tessera_lab.cluster.cluster import SimulatedCluster
from tessera_lab.kubelet.context import ContainerContext, Entrypoint

#: What the agent asks of the driver; waiting for events and closing are no steps.
NVML_CALLS = {name for name in vars(Nvml) if not name.startswith("_")} - {"latency", "wait_event", "close"}


class Killed(Exception):  # noqa: N818 - the word says what happened
    """The end of a process by kill -9, as its own code meets it."""


class Fate:
    """Kills a process once, before or after a step of it has its effect.

    Attributes:
        armed: False while no step counts.
        struck: True once the process was killed.
        after: True if the step has its effect.
    """

    def __init__(self) -> None:
        self.armed = False
        self.struck = False
        self.after = False
        self._left = 0

    def arm(self, at: int, *, after: bool) -> None:
        """Kills the process that takes step ``at``, counted from now on; the first is 1."""
        self.armed, self.after, self._left = True, after, at

    def strikes(self) -> bool:
        """True if this step is the fatal one."""
        if not self.armed or self.struck:
            return False
        self._left -= 1
        self.struck = self._left == 0
        return self.struck


class Life:
    """One run of a process. Once it is over, nothing that it still tries has any effect."""

    def __init__(self, fate: Fate) -> None:
        self._fate = fate
        self._over = False
        self.task: asyncio.Task[int] | None = None

    @contextmanager
    def step(self, what: str, *, counts: bool) -> Iterator[None]:
        """Around one step of the process."""
        self.check()
        fatal = counts and self._fate.strikes()
        if fatal and not self._fate.after:
            self._end(what)
        yield
        if fatal:
            self._end(what)

    def check(self) -> None:
        """Raises if the process is dead."""
        if self._over:
            raise Killed("it is dead already")

    def _end(self, what: str) -> None:
        self._over = True
        assert self.task is not None
        self.task.cancel()
        raise Killed(what)


class MortalTransport:
    """A process's way to the API server, which ends with the process."""

    def __init__(self, inner: Transport, life: Life, *, counts: bool) -> None:
        self._inner = inner
        self._life = life
        self._counts = counts

    async def request(self, request: Request) -> Response:
        writes = request.method != "GET" and "/leases/" not in request.path
        with self._life.step(f"{request.method} {request.path}", counts=writes and self._counts):
            return await self._inner.request(request)

    def stream(self, request: Request) -> AbstractAsyncContextManager[Stream]:
        self._life.check()
        return self._inner.stream(request)

    async def close(self) -> None:
        await self._inner.close()


class MortalCards:
    """A process's way to the simulated cards, which ends with the process."""

    def __init__(self, machine: SimulatedMachine, life: Life, *, counts: bool) -> None:
        self._machine = machine
        self._life = life
        self._counts = counts

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._machine, name)
        if name not in NVML_CALLS:
            return found

        def call(*arguments: Any, **named: Any) -> Any:
            with self._life.step(name, counts=self._counts):
                return found(*arguments, **named)

        return call


class MortalCluster(SimulatedCluster):
    """A cluster in which one process is mortal: the controller at its writes, the agent at its NVML calls.

    Attributes:
        process: the command that is mortal.
        fate: kills it.
    """

    process = ""

    def __init__(self, *arguments: Any, entrypoint: Callable[[SimulatedCluster], Entrypoint], **options: Any) -> None:
        self._lives: dict[str, Life] = {}
        self.fate = Fate()
        super().__init__(*arguments, entrypoint=lambda cluster: self._mortal(entrypoint(cluster)), **options)

    def _mortal(self, inner: Entrypoint) -> Entrypoint:
        async def run(context: ContainerContext) -> int:
            if context.argv[1] != self.process:
                return await inner(context)
            life = self._lives[context.pod.uid] = Life(self.fate)
            cards: Any = MortalCards(context.host.machine, life, counts=self.process == "agent")  # type: ignore[arg-type]
            host = dataclasses.replace(context.host, machine=cards)
            life.task = asyncio.ensure_future(inner(dataclasses.replace(context, host=host)))
            try:
                await asyncio.wait({life.task})
            finally:
                life.task.cancel()
            return 137

        return run

    async def container_client(self, context: ContainerContext) -> Client:
        client = await super().container_client(context)
        life = self._lives.get(context.pod.uid)
        if life is None:
            return client
        transport = MortalTransport(client._transport, life, counts=self.process == "controller")
        return Client(transport, field_manager=client.field_manager, clock=self.clock)


class MortalController(MortalCluster):
    """A cluster whose controller dies at a write."""

    process = "controller"


class MortalAgent(MortalCluster):
    """A cluster whose agent dies at an NVML call."""

    process = "agent"


def fate_of(lab: VirtualLab) -> Fate:
    """What kills the mortal process of a lab; one that strikes nobody if it has none."""
    return lab.cluster.fate if isinstance(lab.cluster, MortalCluster) else Fate()


def die_at(points: Sequence[int], outlives: Callable[[int], bool], *, to_the_end: bool = True, every: int = 1) -> None:
    """Kills a process at each of these points of a story.

    Args:
        points: steps of the process.
        outlives: plays the story in a cluster of its own with a death at a step, and returns whether it came.
        to_the_end: True if the last point must lie beyond the story, so that every point before it was tried.
        every: ``make test`` tries the first, each ``every``-th after it and the last; ``make soak`` tries all.

    A death that did not come ends it: in virtual time all later ones would play that story without a death again.
    """
    tried = points if SEARCHING else sorted({*points[::every], points[-1]})
    beyond = next((at for at in tried if not outlives(at)), None)
    assert beyond != points[0], "nothing died"
    assert not to_the_end or beyond is not None, "the last point lies beyond the story, so every one before was tried"
