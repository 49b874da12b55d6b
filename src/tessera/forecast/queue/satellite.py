"""The queue's page, positions and expected starts as a satellite of the controller."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from tessera.controller.leadership.satellite import Process, Task, Term
from tessera.forecast.queue.queue_task import QueueTask
from tessera.forecast.queue_page import QUEUE_PATH, QueuePage, aged, encode_page


@dataclass(frozen=True, kw_only=True)
class ForecastSatellite:
    """Publishes why each pod waits, its position, and when it may start."""

    @asynccontextmanager
    async def open(self, process: Process) -> AsyncIterator[Callable[[Term], None]]:
        """See :class:`~tessera.controller.leadership.satellite.Satellite`."""
        #: The queue of the present term; none while another replica leads.
        present: list[QueueTask] = []

        def page() -> bytes:
            found = present[-1].page if present else QueuePage()
            return encode_page(aged(found, process.clock.now()))

        def join(term: Term) -> None:
            queue = QueueTask(
                term.runtime,
                term.slicer,
                pods=term.pods,
                nodes=term.nodes,
                events=term.events,
                namespace=term.namespace,
            )
            queue.follow()
            present.append(queue)
            term.at_end.callback(present.clear)
            term.tasks.append(Task(name="queue", run=queue.run))
            term.tasks.append(Task(name="history of leases", run=queue.write))

        process.pages[QUEUE_PATH] = page
        yield join
