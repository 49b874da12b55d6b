"""Provisioning as a satellite of the controller."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from tessera.controller.leadership.satellite import Process, Task, Term
from tessera.provisioning.metrics import ProvisioningMetrics
from tessera.provisioning.options import ProvisioningOptions
from tessera.provisioning.run import Provisioning


@dataclass(frozen=True, kw_only=True)
class ProvisioningSatellite:
    """Follows each new node until its cards can be used.

    Attributes:
        options: see :class:`~tessera.provisioning.options.ProvisioningOptions`.
    """

    options: ProvisioningOptions = field(default_factory=ProvisioningOptions)

    @asynccontextmanager
    async def open(self, process: Process) -> AsyncIterator[Callable[[Term], None]]:
        """See :class:`~tessera.controller.leadership.satellite.Satellite`."""
        metrics = ProvisioningMetrics(process.registry)

        def join(term: Term) -> None:
            provisioning = Provisioning(
                term.runtime,
                nodes=term.nodes,
                pods=term.pods,
                events=term.events,
                metrics=metrics,
                options=self.options,
            )
            term.tasks.append(Task(name="provisioning", run=provisioning.run, at_once=True))

        yield join
