"""Probes of simulated containers whose image has a program: when kubelet probes, and how it reacts to the answers.

Times are kubelet's (``pkg/kubelet/prober/worker.go``): each probe has a ticker that began when the pod did. It runs at
a tick, not before ``initialDelaySeconds`` after the container's start; the first readiness probe runs at once when
the container has started, since a container that is not ready triggers its probe. Kubelet kills a container whose
startup probe failed ``failureThreshold`` times. The lab does not run liveness probes.

This module does not poll: while the result stays the same no timer runs, so a probe of one second costs a lab on
virtual time no more than one of a minute. A probe that goes on failing therefore records one event, not one each time.

:class:`ProgramRun` is one run of an image's program with its probes.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

import msgspec

from tessera_lab.kubelet.images.catalogue import ProgramContext, ProgramHealth, RunClock, exit_code

Json = Mapping[str, Any]


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """A probe's times in seconds and its thresholds; defaults are the API's."""

    delay: float = 0.0
    period: float = 10.0
    successes: int = 1
    failures: int = 3

    @classmethod
    def of(cls, container: Json, kind: str) -> "Probe | None":
        """Reads the container's ``startupProbe`` or ``readinessProbe``; None if it has none."""
        written = container.get(kind)
        if written is None:
            return None
        return cls(
            delay=float(written.get("initialDelaySeconds") or 0),
            period=float(written.get("periodSeconds") or 10),
            successes=int(written.get("successThreshold") or 1),
            failures=int(written.get("failureThreshold") or 3),
        )

    def tick(self, began: float, earliest: float) -> float:
        """Returns the first tick that is not before ``earliest``, of a ticker that began at ``began``."""
        return began + self.period * max(0, math.ceil((earliest - began) / self.period - 1e-9))


class ProbedContainer(Protocol):
    """The container as its probes change it (:class:`~tessera_lab.kubelet.pod_status.ContainerRecord`)."""

    started: bool
    ready: bool

    @property
    def name(self) -> str:
        """The container's name."""
        ...


class ProbeRunner:
    """Runs the probes of one run of a container.

    Args:
        container: the container; the runner sets its ``started`` and ``ready``.
        startup: its startup probe.
        readiness: its readiness probe.
        health: the result of a probe.
        clock: clock of the run.
        pod_began: when kubelet began with the pod, in the clock's monotonic time.
        changed: called after ``started`` or ``ready`` changed.
        record_failure: records a warning event about the pod.
    """

    def __init__(
        self,
        container: ProbedContainer,
        *,
        startup: Probe | None,
        readiness: Probe | None,
        health: ProgramHealth,
        clock: RunClock,
        pod_began: float,
        changed: Callable[[], None],
        record_failure: Callable[[str], None],
    ) -> None:
        self._container = container
        self._startup = startup
        self._readiness = readiness
        self._health = health
        self._clock = clock
        self._pod_began = pod_began
        self._began = clock.monotonic()
        self._changed = changed
        self._record_failure = record_failure
        container.started = startup is None
        container.ready = startup is None and readiness is None

    async def run(self) -> None:
        """Runs the probes; returns only if the startup probe failed and the container must be killed."""
        if self._startup is not None:
            if not await self._starts(self._startup):
                return
            self._health.on_started()
            self._container.started = True
            self._container.ready = self._readiness is None
            self._changed()
        if self._readiness is not None:
            await self._follow(self._readiness)
        await asyncio.Event().wait()

    async def _starts(self, probe: Probe) -> bool:
        """True if the startup probe succeeds before its failure threshold."""
        first = probe.tick(self._pod_began, self._began + probe.delay)
        last = first + (probe.failures - 1) * probe.period
        reported = False
        while True:
            await self._answer(True, until=last if reported else first)
            now = self._clock.monotonic()
            await self._until(max(first, min(last, probe.tick(self._pod_began, now))))
            if self._health.ok:
                return True
            if not reported:
                reported = True
                self._record_failure("Startup probe failed: simulated: the program is not ready yet")
            if self._clock.monotonic() >= last:
                return False

    async def _follow(self, probe: Probe) -> None:
        """Sets ``ready`` by the results of the readiness probe."""
        at_once = probe.delay == 0 and self._health.ok
        while True:
            desired = not self._container.ready
            await self._health.becomes(desired)
            now = self._clock.monotonic()
            if not at_once:
                await self._until(probe.tick(self._pod_began, max(now, self._began + probe.delay)))
            at_once = False
            again = (probe.successes if desired else probe.failures) - 1
            if again:
                await self._clock.sleep(again * probe.period)
            if self._health.ok is desired:
                self._container.ready = desired
                if not desired:
                    self._record_failure("Readiness probe failed: simulated: the program is not ready any more")
                self._changed()

    async def _answer(self, ok: bool, until: float) -> None:
        """Returns when a probe would have the result ``ok``, or at the time ``until``."""
        try:
            async with asyncio.timeout(max(0.0, until - self._clock.monotonic())):
                await self._health.becomes(ok)
        except TimeoutError:
            pass

    async def _until(self, moment: float) -> None:
        seconds = moment - self._clock.monotonic()
        if seconds > 0:
            await self._clock.sleep(seconds)


#: Exit code of a container that was killed.
KILLED_EXIT = 137


class ProgramRun:
    """One run of a container whose image has a program.

    Args:
        program: the image's program.
        context: the program's context.
        probing: the container's probes.

    Attributes:
        killed_by_probe: true if its startup probe failed too often.
    """

    def __init__(
        self, program: Callable[[ProgramContext], Awaitable[int]], context: ProgramContext, probing: ProbeRunner
    ) -> None:
        self._program = program
        self._context = context
        self._probing = probing
        self._task: asyncio.Task[int] | None = None
        self.killed_by_probe = False

    async def run(self) -> int:
        """Runs the program to its end and returns its exit code; cancel it to stop the program.

        A program that is stopped may take its time; :meth:`kill` ends it at once.
        """
        task = self._task = asyncio.create_task(exit_code(self._program, self._context))
        probes = asyncio.create_task(self._probing.run())
        try:
            await asyncio.wait([task, probes], return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            probes.result()
            self.killed_by_probe = True
            return KILLED_EXIT
        finally:
            probes.cancel()
            task.cancel()
            await asyncio.wait([task, probes])
            self._context.clock.stopped = True

    def kill(self) -> None:
        """Ends the program at once; its waits do not end any more."""
        self._context.clock.stopped = True
        if self._task is not None:
            self._task.cancel()
