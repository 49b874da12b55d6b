"""Binds a pod's claims before the pod: kube-scheduler's PreBind of volumes.

It reserves an existing volume for its claim; on a claim that needs a new volume it writes the node, and the provisioner
makes the volume there. Then the binding of this pod waits; the scheduler goes on with others.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any

from tessera.clock import Clock
from tessera.kube.client.client import Client
from tessera.kube.resources import CSI_NODES, PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, STORAGE_CLASSES
from tessera.kube.resources.meta import Resource, key_of, split_key
from tessera.kube.watch.informer import EventKind, Informer, WatchEvent
from tessera_lab.scheduler.decision import NodeChoice
from tessera_lab.scheduler.state.storage_cache import SELECTED_NODE, StorageCache
from tessera_lab.simulation.supervision import LabInformer

Json = dict[str, Any]

#: Seconds that binding may take (``bindTimeoutSeconds``); then the scheduler decides the pod again.
BIND_TIMEOUT = 600.0


class VolumeBinder:
    """Mirrors storage objects and binds claims.

    Args:
        client: writes to the API server.
        storage: the scheduler's cache, which this class keeps up to date.
        changed: called after every change of the cache.
        clock: the time.
        rng: for the mirrors' jitter.
    """

    def __init__(
        self, client: Client, storage: StorageCache, changed: Callable[[], None], *, clock: Clock, rng: random.Random
    ) -> None:
        self._client = client
        self._storage = storage
        self._changed = changed
        self._bound = asyncio.Event()
        kinds: tuple[tuple[Resource[Any], dict[str, Any]], ...] = (
            (PERSISTENT_VOLUME_CLAIMS, storage.claims),
            (PERSISTENT_VOLUMES, storage.volumes),
            (STORAGE_CLASSES, storage.classes),
            (CSI_NODES, storage.csi_nodes),
        )
        self.informers: Sequence[Informer[Json]] = [
            LabInformer(client, kind.as_dicts(), clock=clock, rng=rng) for kind, _ in kinds
        ]
        for informer, (_, memory) in zip(self.informers, kinds, strict=True):
            informer.add_handler(self._mirror(memory))

    def _mirror(self, memory: dict[str, Any]) -> Callable[[WatchEvent[Json]], None]:
        def handle(event: WatchEvent[Json]) -> None:
            if event.kind is EventKind.DELETED:
                memory.pop(key_of(event.object), None)
            else:
                memory[key_of(event.object)] = event.object
            self._bound.set()
            self._changed()

        return handle

    async def bind(self, placed: NodeChoice) -> None:
        """Returns once all claims of a decision are bound.

        Raises:
            TimeoutError: they were not bound in time.
            ApiError: the server refused a write.
        """
        plan = placed.volumes
        for claim, volume in plan.bind.items():
            namespace, name = split_key(claim)
            reference = {"kind": "PersistentVolumeClaim", "apiVersion": "v1", "namespace": namespace, "name": name}
            reference["uid"] = self._storage.claims[claim]["metadata"]["uid"]
            await self._client.merge_patch(PERSISTENT_VOLUMES, volume, {"spec": {"claimRef": reference}})
        for claim in plan.make:
            namespace, name = split_key(claim)
            patch = {"metadata": {"annotations": {SELECTED_NODE: placed.node}}}
            await self._client.merge_patch(PERSISTENT_VOLUME_CLAIMS, name, patch, namespace)
        desired = (*plan.bind, *plan.make)
        if not desired:
            return
        async with asyncio.timeout(BIND_TIMEOUT):
            while not all(self._is_bound(claim) for claim in desired):
                self._bound.clear()
                await self._bound.wait()

    def _is_bound(self, key: str) -> bool:
        claim = self._storage.claims.get(key)
        return claim is not None and self._storage.is_bound(claim)
