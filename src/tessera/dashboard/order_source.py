"""Mirrors what decides on the order of waiting pods: namespaces and Queues. PodGroups are read when a pod names one.

The page says why pods wait as the controller does, so it reads what the controller reads. A user may lack the right to
read some of it, and a cluster may lack the kinds: both are tried again, and count as not there until then.
"""

import asyncio
import random
from collections.abc import Iterable, Mapping
from typing import Any

from tessera.api.queues import QUEUES, read_queue
from tessera.clock import Clock
from tessera.explain.order_objects import OrderObjects, read_last_gates, read_pod_groups
from tessera.kube.client.client import Client
from tessera.kube.client.errors import ApiError
from tessera.kube.resources import NAMESPACES, Namespace, Pod
from tessera.kube.resources.meta import Resource
from tessera.kube.watch.informer import Informer

#: Seconds until a kind that cannot be read is tried again.
RETRY = 15.0


class OrderSource:
    """Mirrors namespaces and Queues.

    Args:
        client: the user's client.
        clock: the time.
        rng: for the pauses of watches.
    """

    def __init__(self, client: Client, *, clock: Clock, rng: random.Random) -> None:
        self._client, self._clock = client, clock
        self._namespaces: Informer[Namespace] = Informer(client, NAMESPACES, clock=clock, rng=rng)
        self._queues: Informer[dict[str, Any]] = Informer(client, QUEUES, clock=clock, rng=rng)
        self._pod_groups: Mapping[str, int] | None = None
        self._last_gates: frozenset[str] = frozenset()

    async def run(self) -> None:
        """Mirrors until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._mirror(NAMESPACES, self._namespaces))
            group.create_task(self._mirror(QUEUES, self._queues))

    async def _mirror(self, resource: Resource[Any], informer: Informer[Any]) -> None:
        while True:
            try:
                await self._client.page(resource, None, limit=1)
                break
            except (ApiError, OSError):
                await self._clock.sleep(RETRY)
        await informer.run()

    async def read_groups(self, pods: Iterable[Pod]) -> None:
        """Reads the PodGroups and the owners of gates; without an answer the former ones count."""
        try:
            self._pod_groups = await read_pod_groups(self._client, pods)
            self._last_gates = await read_last_gates(self._client, pods)
        except (ApiError, OSError):
            return

    @property
    def objects(self) -> OrderObjects:
        """What is mirrored now."""
        return OrderObjects(
            namespaces=list(self._namespaces.cache.values()),
            queues=[read_queue(each) for each in self._queues.cache.values()],
            pod_groups=self._pod_groups,
            last_gates=self._last_gates,
        )
