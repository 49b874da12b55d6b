"""Tells the slicer the sizes of gangs that PodGroup objects of the coscheduling plugin state.

A cluster without the kind costs one small request a minute, later less. Pods that name a PodGroup wait until it is
known whether there are any. A controller without the right to list them plans such pods one by one.
"""

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Any

from tessera.api.pods.gangs import POD_GROUPS, read_pod_group
from tessera.clock import Clock
from tessera.controller.leadership.informers import SlicerInput
from tessera.controller.slicing.slicer import Slicer
from tessera.controller.slicing.state.events import PodGroupObserved, PodGroupsListed
from tessera.kube.client.client import Client
from tessera.kube.client.errors import ApiError
from tessera.kube.watch.cache import EventKind, WatchEvent
from tessera.kube.watch.informer import Informer
from tessera.kube.watch.optional_kind import wait_served

_log = logging.getLogger(__name__)

#: Seconds that pods with a PodGroup wait for the first list of PodGroups.
SYNC_TIMEOUT = 10.0


class PodGroupInformer(SlicerInput):
    """Passes PodGroups to the slicer.

    Args:
        client: the client that watches.
        slicer: takes the events.
        changed: called after each event.
        clock: times the pauses.
        rng: for jitter.
    """

    def __init__(
        self, client: Client, slicer: Slicer, changed: Callable[[], None], *, clock: Clock, rng: random.Random
    ) -> None:
        super().__init__(slicer, changed)
        self._client = client
        self._clock = clock
        self._informer = Informer(client, POD_GROUPS, clock=clock, rng=rng)
        self._informer.add_handler(self._group_changed)

    async def run(self) -> None:
        """Watches until cancelled, once the cluster has the kind."""
        await wait_served(self._is_served, self._clock)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._informer.run())
            try:
                async with asyncio.timeout(SYNC_TIMEOUT):
                    await self._informer.wait_synced()
            except TimeoutError:
                _log.warning(
                    "PodGroups are not listed after %.0f s: their pods are planned one by one; apply the rights of this"
                    " version (deploy/rbac.yaml)",
                    SYNC_TIMEOUT,
                )
                self._tell(served=False)
                await self._informer.wait_synced()
            self._tell(served=True)

    async def _is_served(self) -> bool:
        """True if the cluster has the kind; pods with a PodGroup wait as long as the server does not answer."""
        try:
            served = await self._client.serves(POD_GROUPS.api_version)
        except (ApiError, ConnectionError, TimeoutError):
            return True  # the informer tries again
        if not served:
            self._tell(served=False)
        return served

    def _tell(self, *, served: bool) -> None:
        self._pass_on(PodGroupsListed(served=served))

    def _group_changed(self, event: WatchEvent[dict[str, Any]]) -> None:
        key, size = read_pod_group(event.object)
        self._pass_on(PodGroupObserved(key, None if event.kind is EventKind.DELETED else size))
