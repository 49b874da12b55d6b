"""GPU-hours as a satellite of the controller."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from tessera.controller.leadership.satellite import Process, Task, Term
from tessera.usage.recorder import UsageOptions, UsageRecorder


@dataclass(frozen=True, kw_only=True)
class UsageSatellite:
    """Counts GPU-hours.

    Attributes:
        options: see :class:`~tessera.usage.recorder.UsageOptions`.
    """

    options: UsageOptions = field(default_factory=UsageOptions)

    @asynccontextmanager
    async def open(self, _process: Process) -> AsyncIterator[Callable[[Term], None]]:
        """See :class:`~tessera.controller.leadership.satellite.Satellite`."""
        yield self._join

    def _join(self, term: Term) -> None:
        recorder = UsageRecorder(
            term.runtime, nodes=term.nodes, pods=term.pods, events=term.events, options=self.options
        )
        term.tasks.append(Task(name="GPU-hours", run=recorder.run, at_once=True))
        term.tasks.append(Task(name="record of GPU-hours", run=recorder.write, at_once=True))
