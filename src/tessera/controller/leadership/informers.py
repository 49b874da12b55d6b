"""Feeds the slicer from watches of the API server.

Pods, nodes and Instaslice objects are necessary. Namespaces, claims, volumes, storage classes and CSI nodes refine
where a pod may run: each is a watch that costs nothing while nothing changes, and a controller without the right to
watch them (its ClusterRole is older than itself) goes on without judging them.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from tessera.api.instaslice import Instaslice
from tessera.api.names import NodeName, PodUid
from tessera.clock import Clock
from tessera.controller.cluster.cluster_state import Observed
from tessera.controller.objects.node_info import read_node
from tessera.controller.objects.pod_info import read_pod
from tessera.controller.slicing.slicer import Slicer
from tessera.kube.client.client import Client
from tessera.kube.resources import (
    CSI_NODES,
    NAMESPACES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    STORAGE_CLASSES,
    Namespace,
    Node,
    PersistentVolume,
    Pod,
)
from tessera.kube.resources.meta import key_of, split_key
from tessera.kube.watch.cache import EventKind, WatchEvent
from tessera.kube.watch.informer import Informer


class SliceInformers:
    """Follows pods, nodes and Instaslice objects.

    Args:
        slicer: the machine.
        changed: called after each change that was passed on.
    """

    def __init__(self, slicer: Slicer, changed: Callable[[], None]) -> None:
        self._slicer = slicer
        self._changed = changed

    def follow(self, pods: Informer[Pod], nodes: Informer[Node], objects: Informer[Instaslice]) -> None:
        """Listens to these mirrors from now on."""
        pods.on_rollback(self._slicer.rewind_pods)
        pods.add_handler(self.pod_seen)
        nodes.add_handler(self.node_seen)
        objects.on_rollback(self._slicer.rewind_objects)
        objects.on_unreadable(self.object_unreadable)
        objects.add_handler(self.object_seen)

    def pod_seen(self, event: WatchEvent[Pod]) -> None:
        """A pod came, changed or went."""
        if event.kind is EventKind.DELETED:
            self._slicer.lose_pod(PodUid(event.object.metadata.uid))
        else:
            self._slicer.see_pod(read_pod(event.object))
        self._changed()

    def node_seen(self, event: WatchEvent[Node]) -> None:
        """A node came, changed or went."""
        if event.kind is EventKind.DELETED:
            self._slicer.lose_node(NodeName(event.object.metadata.name))
        else:
            self._slicer.see_node(read_node(event.object))
        self._changed()

    def object_seen(self, event: WatchEvent[Instaslice]) -> None:
        """An Instaslice object came, changed or went."""
        if event.kind is EventKind.DELETED:
            self._slicer.lose_object(NodeName(event.object.metadata.name))
        else:
            self._slicer.see_object(event.object)
        self._changed()

    def object_unreadable(self, key: str, error: str | None) -> None:
        """An Instaslice object does not decode, or decodes again."""
        self._slicer.see_unreadable(NodeName(split_key(key)[1]), error)
        self._changed()


_log = logging.getLogger(__name__)

T = TypeVar("T")

#: Seconds that a new leader waits for these mirrors; they are complete with the others where the rights are there.
SYNC_TIMEOUT = 10.0


class ConstraintInformers:
    """The mirrors.

    Args:
        client: who watches.
        observed: told of every change.
        changed: called after one.
        clock: for pauses.
        rng: for jitter.
    """

    def __init__(
        self, client: Client, observed: Observed, changed: Callable[[], None], *, clock: Clock, rng: random.Random
    ) -> None:
        self._observed = observed
        self._changed = changed
        storage = observed.storage
        namespaces = Informer(client, NAMESPACES, clock=clock, rng=rng)
        claims = Informer(client, PERSISTENT_VOLUME_CLAIMS, clock=clock, rng=rng)
        volumes = Informer(client, PERSISTENT_VOLUMES, clock=clock, rng=rng)
        classes = Informer(client, STORAGE_CLASSES, clock=clock, rng=rng)
        csi_nodes = Informer(client, CSI_NODES, clock=clock, rng=rng)
        namespaces.add_handler(self._namespace)
        claims.add_handler(self._store_in(storage.claims))
        volumes.add_handler(self._volume)
        classes.add_handler(self._store_in(storage.classes))
        csi_nodes.add_handler(self._store_in(storage.csi_nodes))
        self._informers: Sequence[Informer[Any]] = (namespaces, claims, volumes, classes, csi_nodes)

    async def run(self) -> None:
        """Mirrors until cancelled; volumes are judged once everything is listed."""
        async with asyncio.TaskGroup() as group:
            for informer in self._informers:
                group.create_task(informer.run())
            await self._listed()

    async def wait_synced(self) -> None:
        """Returns once everything is listed, or when that takes too long."""
        try:
            async with asyncio.timeout(SYNC_TIMEOUT):
                await self._listed()
        except TimeoutError:
            _log.warning(
                "namespaces, claims, volumes, storage classes or CSI nodes are not listed after %.0f s: slices are "
                "placed without regard to them; apply the rights of this version (deploy/rbac.yaml)",
                SYNC_TIMEOUT,
            )

    async def _listed(self) -> None:
        for informer in self._informers:
            await informer.wait_synced()
        self._observed.storage_listed = True
        self._storage_changed()

    def _storage_changed(self) -> None:
        self._observed.neighbours_changed = True
        self._changed()

    def _store_in(self, memory: dict[str, T]) -> Callable[[WatchEvent[T]], None]:
        def handle(event: WatchEvent[T]) -> None:
            if event.kind is EventKind.DELETED:
                memory.pop(key_of(event.object), None)
            else:
                memory[key_of(event.object)] = event.object
            self._storage_changed()

        return handle

    def _volume(self, event: WatchEvent[PersistentVolume]) -> None:
        if event.kind is EventKind.DELETED:
            self._observed.storage.drop_volume(event.object.metadata.name)
        else:
            self._observed.storage.put_volume(event.object)
        self._storage_changed()

    def _namespace(self, event: WatchEvent[Namespace]) -> None:
        gone = event.kind is EventKind.DELETED
        meta = event.object.metadata
        self._observed.see_namespace(meta.name, None if gone else meta.labels)
        self._changed()
