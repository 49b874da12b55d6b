"""Claims as a satellite of the controller: a further kind of request, and what feeds it."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

from tessera.claims.controller.claim_informers import ClaimInformers
from tessera.claims.controller.claims import Claims
from tessera.controller.leadership.satellite import Process, Task, Term


@dataclass(frozen=True, kw_only=True)
class ClaimSatellite:
    """Places pods by their ResourceClaims.

    Attributes:
        driver: name of the driver by which agents publish devices.
    """

    driver: str

    @asynccontextmanager
    async def open(self, process: Process) -> AsyncIterator[Callable[[Term], None]]:
        """See :class:`~tessera.controller.leadership.satellite.Satellite`."""

        def join(term: Term) -> None:
            informers = ClaimInformers(term.runtime, term.slicer, term.wake, self.driver)
            term.tasks.append(
                Task(name="ResourceClaims", run=informers.run, at_once=True, wait_listed=informers.wait_synced)
            )

        process.kinds.append(partial(Claims, driver=self.driver))
        yield join
