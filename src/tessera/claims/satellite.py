"""Claims as a satellite of the controller: a further kind of request, and the informers that feed it.

Until all claims are listed, no slices go back: a claim that nobody has seen might still have them. A server without the
API (before Kubernetes 1.34) has no claims. A controller without the right to list them places none, and says so.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tessera.claims.controller.claims import Claims
from tessera.claims.controller.scheduler_claims import SchedulerClaims
from tessera.controller.informers import RIGHTS_ADVICE, ClusterInput
from tessera.controller.objects.pod_info import CLAIMS
from tessera.controller.satellite import Process, Task, Term
from tessera.controller.slicing.slicer import Slicer
from tessera.controller.slicing.state.events import RecordObserved, RecordsListed
from tessera.dra.claims import DEVICE_CLASSES, RESOURCE_CLAIMS
from tessera.dra.resource_slices import RESOURCE_SLICES
from tessera.kube.cache import EventKind, WatchEvent
from tessera.kube.informer import Informer, describe_unlisted, is_served, wait_served
from tessera.kube.leader_election import KubeRuntime

_log = logging.getLogger(__name__)

#: Seconds that a new leader waits for the lists; with the rights granted, they are complete together with the others.
SYNC_TIMEOUT = 10.0


class ClaimInformers(ClusterInput):
    """Passes events of claims, classes and published devices to the slicer.

    Args:
        runtime: access to the cluster.
        slicer: takes the events.
        changed: called after each event.
        driver: the driver whose devices count.
    """

    def __init__(self, runtime: KubeRuntime, slicer: Slicer, changed: Callable[[], None], driver: str) -> None:
        super().__init__(runtime, slicer, changed)
        classes = self._watch(DEVICE_CLASSES)
        slices = self._watch(RESOURCE_SLICES, field_selector=f"spec.driver={driver}")
        claims = self._watch(RESOURCE_CLAIMS)
        self._informers: Sequence[Informer[Any]] = (classes, slices, claims)
        for informer in self._informers:
            informer.add_handler(self._changed_object)
        #: Set once it is known that the server has no claims.
        self._absent = asyncio.Event()

    async def run(self) -> None:
        """Watches until cancelled, once the server has the API."""
        await wait_served(self._is_served, self._clock)
        async with asyncio.TaskGroup() as group:
            for informer in self._informers:
                group.create_task(informer.run())
            await self._wait_listed()
            self._pass_on(RecordsListed(CLAIMS.name))

    async def wait_synced(self) -> None:
        """Returns once everything is listed, or cannot be; after :data:`SYNC_TIMEOUT` with a warning."""
        tasks = [asyncio.ensure_future(self._wait_listed()), asyncio.ensure_future(self._absent.wait())]
        try:
            done, _ = await asyncio.wait(tasks, timeout=SYNC_TIMEOUT, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
        if not done:
            _log.warning(
                "ResourceClaims, DeviceClasses or ResourceSlices are not listed after %.0f s: no claim gets slices, and"
                " no slices go back until they are; %s",
                SYNC_TIMEOUT,
                describe_unlisted(self._informers, RIGHTS_ADVICE),
            )

    async def _is_served(self) -> bool:
        served = await is_served(self._client, RESOURCE_CLAIMS.api_version, self._clock)
        if not served:
            self._absent.set()
            self._pass_on(RecordsListed(CLAIMS.name))
        return served

    async def _wait_listed(self) -> None:
        for informer in self._informers:
            await informer.wait_synced()

    def _changed_object(self, event: WatchEvent[Any]) -> None:
        self._pass_on(RecordObserved(CLAIMS.name, event.object, deleted=event.kind is EventKind.DELETED))


@dataclass(frozen=True, kw_only=True)
class ClaimSatellite:
    """Places pods by their ResourceClaims, or counts what kube-scheduler gives to them.

    Attributes:
        driver: name of the driver by which agents publish devices.
        by_scheduler: kube-scheduler's allocator places.
    """

    driver: str
    by_scheduler: bool = False

    def open(self, process: Process) -> Callable[[Term], None]:
        """See :class:`~tessera.controller.satellite.Satellite`."""

        def join(term: Term) -> None:
            informers = ClaimInformers(term.runtime, term.slicer, term.wake, self.driver)
            term.tasks.append(
                Task(name="ResourceClaims", run=informers.run, at_once=True, wait_listed=informers.wait_synced)
            )

        process.kinds.append(partial(SchedulerClaims if self.by_scheduler else Claims, driver=self.driver))
        return join
