"""Kueue's admission check as a satellite of the controller."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from prometheus_client import Counter

from tessera.api.nodes.undecided_nodes import UndecidedNodes
from tessera.controller.leadership.satellite import Process, Task, Term
from tessera.kueue.checks.check_controller import AdmissionChecks


@dataclass(frozen=True, kw_only=True)
class CheckSatellite:
    """Answers Kueue's admission checks; does nothing where Kueue is not installed."""

    @asynccontextmanager
    async def open(self, process: Process) -> AsyncIterator[Callable[[Term], None]]:
        """See :class:`~tessera.controller.leadership.satellite.Satellite`."""
        answers = Counter(
            "tessera_admission_checks",
            "Answers to Kueue's admission check, by the state that was written.",
            ["state"],
            registry=process.registry,
        )

        def join(term: Term) -> None:
            undecided = UndecidedNodes(term.runtime.clock.now)
            term.nodes.add_handler(undecided.node_changed)
            term.may_bring_nodes.append(undecided.any_undecided)
            checks = AdmissionChecks(
                term.runtime.client,
                term.slicer,
                count=lambda state: answers.labels(state).inc(),
                after_step=term.after_step,
                nodes_may_come=lambda: any(each() for each in term.may_bring_nodes),
                clock=term.runtime.clock,
                rng=term.runtime.rng,
            )
            term.tasks.append(Task(name="admission checks of Kueue", run=checks.run))

        yield join
