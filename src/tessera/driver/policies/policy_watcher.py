"""Administrators' objects as they are followed: mirrored where the cluster has such kinds, and made one value.

A cluster without the definitions is a cluster in which nobody has said anything; they may come at any time. What an
object said when it last had no mistakes is kept (:mod:`tessera.driver.policies.followed_policies`).
"""

import asyncio
import random
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from tessera.api.driver.objects import CLUSTER_POLICIES, NVIDIA_DRIVERS
from tessera.clock import Clock
from tessera.driver.manifests.names import NAMESPACE
from tessera.driver.policies.followed_policies import PolicyMemory
from tessera.driver.policies.policy_selection import Governance, Labels, Objects, govern
from tessera.kube.cache import Event
from tessera.kube.client import Client
from tessera.kube.errors import NotFound
from tessera.kube.informer import Informer
from tessera.kube.meta import Resource

Obj = dict[str, Any]


class Policies:
    """ClusterPolicy and NVIDIADriver objects.

    Args:
        client: the API server.
        clock: the time.
        rng: for jitter.
        may_act: whether this process still leads; asked before each write.
        stirred: called when an object changed, with what writes may now be judged anew.
    """

    def __init__(
        self,
        client: Client,
        clock: Clock,
        *,
        rng: random.Random,
        may_act: Callable[[], bool],
        stirred: Callable[[Iterable[str]], None],
    ) -> None:
        self._cluster_policies: Informer[Obj] = Informer(client, CLUSTER_POLICIES, clock=clock, rng=rng)
        self._drivers: Informer[Obj] = Informer(client, NVIDIA_DRIVERS, clock=clock, rng=rng)
        self._memory = PolicyMemory(client, clock, namespace=NAMESPACE, rng=rng, may_act=may_act)
        self._stirred = stirred
        self._cluster_policies.add_handler(partial(self._seen, CLUSTER_POLICIES))
        self._drivers.add_handler(partial(self._seen, NVIDIA_DRIVERS))

    async def run(self) -> None:
        """Mirrors, and writes down what is followed, until cancelled."""
        async with asyncio.TaskGroup() as group:
            for part in (self._cluster_policies.run(), self._drivers.run(), self._memory.run()):
                group.create_task(part)

    async def wait_read(self) -> None:
        """Returns once all objects were listed, or are known not to exist, and what was followed before was read."""
        for mirror in (self._cluster_policies, self._drivers):
            while not mirror.synced and not _is_absent(mirror):
                mirror.reflector.looked.clear()
                await mirror.reflector.looked.wait()
        await self._memory.load()

    def govern(self, nodes: Labels) -> Governance:
        """Which policy governs which node now; what is followed by that is remembered.

        Args:
            nodes: labels of the nodes with cards, by name.
        """
        objects = Objects(
            cluster_policies=_objects(self._cluster_policies),
            nvidia_drivers=_objects(self._drivers),
            followed=self._memory.followed,
        )
        governance = govern(objects, nodes)
        self._memory.follow(governance.followed)
        return governance

    def _seen(self, kind: Resource[Obj], event: Event[Obj]) -> None:
        self._stirred((f"policy/{kind.kind}/{event.object['metadata']['name']}",))


def _objects(mirror: Informer[Obj]) -> list[Obj] | None:
    """All objects of a kind; None where the API server has no such kind."""
    return list(mirror.cache.values()) if mirror.synced else None


def _is_absent(mirror: Informer[Obj]) -> bool:
    """Whether the API server said that there is no such kind."""
    return isinstance(mirror.reflector.error, NotFound)
