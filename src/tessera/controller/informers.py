"""Feeds the slicer from watches of the API server.

Watches of pods, nodes and Instaslice objects are necessary. Watches of namespaces, claims, volumes, storage classes and
CSI nodes refine where a pod may run; a watch costs nothing while nothing changes. A controller without the right to
watch them (its ClusterRole is of an older version) runs without these rules.

PodGroup objects of the coscheduling plugin state the sizes of gangs. A cluster without the kind costs one small request
a minute, later less. Pods that name a PodGroup wait until it is known whether there are any. A controller without the
right to list them plans such pods one by one.

The server is also asked whether the owners exist that pods name: those of a pod, and those of its gates. Whoever
creates a pod writes its owner. Only a pod that would inherit an age (:class:`.WaitingAges`) or
slots (:attr:`.Proposer.unknown_owners`) is asked about, with one or two small requests for each owner. So no pod
inherits by a made-up one.

The gates of some operators go after Tessera's. A gate's name alone says nothing: any author of a pod can write it.
Where its owner's API group is not served, nobody removes the gate, and Tessera promises nothing before it is gone, as
with any gate of others. It costs one small request a minute, later less.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from typing import Any, TypeVar

from tessera.api.instaslice import Instaslice
from tessera.api.names import LAST_GATES, OWN_DOMAIN, NodeName, PodUid
from tessera.api.pod_annotations import POD_GROUPS, read_pod_group
from tessera.api.queues import QUEUES, read_queue
from tessera.controller.cluster.volumes import StorageObject
from tessera.controller.objects.node_info import read_node
from tessera.controller.objects.pod_info import Owner, OwnerReader, Workload, read_pod
from tessera.controller.slicing.slicer import Slicer
from tessera.controller.slicing.state.events import (
    InstasliceDeleted,
    InstasliceKindMissing,
    InstasliceObserved,
    InstasliceUnreadable,
    InstasliceVersionsReset,
    LastGatesObserved,
    NamespaceObserved,
    NodeDeleted,
    NodeObserved,
    OwnerLookedUp,
    PodDeleted,
    PodGroupObserved,
    PodGroupsListed,
    PodObserved,
    PodVersionsReset,
    QueueDeleted,
    QueueObserved,
    SlicerEvent,
    StorageListed,
    StorageObserved,
)
from tessera.kube.cache import EventKind, WatchEvent
from tessera.kube.errors import ApiError, NotFound
from tessera.kube.informer import (
    LOOK_AGAIN,
    LOOK_SELDOM,
    Informer,
    describe_unlisted,
    is_served,
    read_parts,
    wait_served,
)
from tessera.kube.leader_election import KubeRuntime
from tessera.kube.resources import (
    CSI_NODES,
    JOBS,
    NAMESPACES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    REPLICASETS,
    STATEFULSETS,
    STORAGE_CLASSES,
    Namespace,
    Node,
    Pod,
    Resource,
)
from tessera.kube.resources.meta import split_key

_log = logging.getLogger(__name__)

_Stored = TypeVar("_Stored", bound=StorageObject)
_Object = TypeVar("_Object")

#: Seconds that a new leader waits for the informers of :class:`ConstraintInformers`, and pods with a PodGroup for the
#: first list of PodGroups; with the rights granted, they are complete together with the others.
SYNC_TIMEOUT = 10.0
#: Seconds that a new leader waits for Queue objects, without which the order is another.
QUEUE_SYNC_TIMEOUT = 2.0
#: The next step that is told where the controller lacks a right.
RIGHTS_ADVICE = "apply the rights of this version (deploy/rbac.yaml)"
_QUEUE_ADVICE = "apply the definitions and rights of this version (deploy/crds/queues.yaml, deploy/rbac.yaml)"

#: What is read of a Node.
_READS = read_parts("metadata.labels", "spec", "status", annotations=(OWN_DOMAIN,))


class SlicerInput:
    """The way of events to the slicer.

    Args:
        slicer: takes the events.
        changed: called after each event.
    """

    def __init__(self, slicer: Slicer, changed: Callable[[], None]) -> None:
        self._slicer = slicer
        self._changed = changed

    def _pass_on(self, event: SlicerEvent) -> None:
        self._slicer.handle(event)
        self._changed()


class ClusterInput(SlicerInput):
    """The way of events to the slicer from what asks the API server by itself.

    Args:
        runtime: access to the cluster.
        slicer: takes the events.
        changed: called after each event.
    """

    def __init__(self, runtime: KubeRuntime, slicer: Slicer, changed: Callable[[], None]) -> None:
        super().__init__(slicer, changed)
        self._client, self._clock, self._rng = runtime.client, runtime.clock, runtime.rng

    def _watch(self, resource: Resource[_Object], **options: Any) -> Informer[_Object]:
        """An informer; the caller runs it."""
        return Informer(self._client, resource, clock=self._clock, rng=self._rng, **options)


class SliceInformers(SlicerInput):
    """Passes events of pods, nodes and Instaslice objects to the slicer."""

    def follow(self, pods: Informer[Pod], nodes: Informer[Node], objects: Informer[Instaslice]) -> None:
        """Subscribes to these informers."""
        pods.on_rollback(self._pod_versions_reset)
        pods.add_handler(self.pod_changed)
        nodes.add_handler(self.node_changed, reads=_READS)
        objects.on_rollback(self._instaslice_versions_reset)
        objects.on_missing(lambda missing: self._pass_on(InstasliceKindMissing(missing)))
        objects.on_unreadable(self.object_unreadable)
        objects.add_handler(self.object_changed)

    def pod_changed(self, event: WatchEvent[Pod]) -> None:
        """Handles an event of a pod."""
        if event.kind is EventKind.DELETED:
            self._pass_on(PodDeleted(PodUid(event.object.metadata.uid)))
        else:
            self._pass_on(PodObserved(read_pod(event.object)))

    def node_changed(self, event: WatchEvent[Node]) -> None:
        """Handles an event of a node."""
        if event.kind is EventKind.DELETED:
            self._pass_on(NodeDeleted(NodeName(event.object.metadata.name)))
        else:
            self._pass_on(NodeObserved(read_node(event.object)))

    def object_changed(self, event: WatchEvent[Instaslice]) -> None:
        """Handles an event of an Instaslice object."""
        if event.kind is EventKind.DELETED:
            self._pass_on(InstasliceDeleted(NodeName(event.object.metadata.name)))
        else:
            self._pass_on(InstasliceObserved(event.object))

    def object_unreadable(self, key: str, error: str | None) -> None:
        """Handles an Instaslice object that does not decode, or decodes again."""
        self._pass_on(InstasliceUnreadable(NodeName(split_key(key)[1]), error))

    def _pod_versions_reset(self) -> None:
        self._slicer.handle(PodVersionsReset())

    def _instaslice_versions_reset(self) -> None:
        self._slicer.handle(InstasliceVersionsReset())


class QueueInformer(ClusterInput):
    """Passes events of Queue objects to the slicer. A cluster without the definition of Queue has no queues."""

    def __init__(self, runtime: KubeRuntime, slicer: Slicer, changed: Callable[[], None]) -> None:
        super().__init__(runtime, slicer, changed)
        self._informer = self._watch(QUEUES)
        self._informer.add_handler(self._queue_changed)

    async def run(self) -> None:
        """Watches until cancelled."""
        await self._informer.run()

    async def wait_synced(self) -> None:
        """Returns once the queues are listed: at once without a definition, after some seconds with a warning."""
        try:
            await self._client.list(QUEUES, limit=1)
        except NotFound:
            return
        except (ApiError, ConnectionError, TimeoutError):
            pass  # the informer tries again, and the warning below tells the remedy
        try:
            async with asyncio.timeout(QUEUE_SYNC_TIMEOUT):
                await self._informer.wait_synced()
        except TimeoutError:
            _log.warning(
                "Queue objects are not listed after %.0f s: pods go by priority and age; %s",
                QUEUE_SYNC_TIMEOUT,
                describe_unlisted([self._informer], _QUEUE_ADVICE),
            )

    def _queue_changed(self, event: WatchEvent[dict[str, Any]]) -> None:
        queue = read_queue(event.object)
        deleted = event.kind is EventKind.DELETED
        self._pass_on(QueueDeleted(queue.name) if deleted else QueueObserved(queue))


class ConstraintInformers(ClusterInput):
    """Passes events of namespaces, claims, volumes, storage classes and CSI nodes to the slicer."""

    def __init__(self, runtime: KubeRuntime, slicer: Slicer, changed: Callable[[], None]) -> None:
        super().__init__(runtime, slicer, changed)
        namespaces = self._watch(NAMESPACES)
        namespaces.add_handler(self._namespace_changed)
        stored: Sequence[Informer[Any]] = (
            self._watch(PERSISTENT_VOLUME_CLAIMS),
            self._watch(PERSISTENT_VOLUMES),
            self._watch(STORAGE_CLASSES),
            self._watch(CSI_NODES),
        )
        for each in stored:
            each.add_handler(self._storage_changed)
        self._informers: Sequence[Informer[Any]] = (namespaces, *stored)

    async def run(self) -> None:
        """Watches until cancelled; the slicer tests claims once everything is listed."""
        async with asyncio.TaskGroup() as group:
            for informer in self._informers:
                group.create_task(informer.run())
            await self._wait_listed()

    async def wait_synced(self) -> None:
        """Returns once everything is listed, or after :data:`SYNC_TIMEOUT` with a warning."""
        try:
            async with asyncio.timeout(SYNC_TIMEOUT):
                await self._wait_listed()
        except TimeoutError:
            _log.warning(
                "namespaces, claims, volumes, storage classes or CSI nodes are not listed after %.0f s: slices are "
                "placed without regard to them; %s",
                SYNC_TIMEOUT,
                describe_unlisted(self._informers, RIGHTS_ADVICE),
            )

    async def _wait_listed(self) -> None:
        for informer in self._informers:
            await informer.wait_synced()
        self._pass_on(StorageListed())

    def _storage_changed(self, event: WatchEvent[_Stored]) -> None:
        self._pass_on(StorageObserved(event.object, deleted=event.kind is EventKind.DELETED))

    def _namespace_changed(self, event: WatchEvent[Namespace]) -> None:
        meta = event.object.metadata
        self._pass_on(NamespaceObserved(meta.name, None if event.kind is EventKind.DELETED else meta.labels))


class PodGroupInformer(ClusterInput):
    """Passes PodGroups to the slicer."""

    def __init__(self, runtime: KubeRuntime, slicer: Slicer, changed: Callable[[], None]) -> None:
        super().__init__(runtime, slicer, changed)
        self._informer = self._watch(POD_GROUPS)
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
                    "PodGroups are not listed after %.0f s: their pods are planned one by one; %s",
                    SYNC_TIMEOUT,
                    describe_unlisted([self._informer], RIGHTS_ADVICE),
                )
                self._tell(served=False)
                await self._informer.wait_synced()
            self._tell(served=True)

    async def _is_served(self) -> bool:
        """True if the cluster has the kind; pods with a PodGroup wait as long as the server does not answer."""
        served = await is_served(self._client, POD_GROUPS.api_version, self._clock)
        if not served:
            self._tell(served=False)
        return served

    def _tell(self, *, served: bool) -> None:
        self._pass_on(PodGroupsListed(served=served))

    def _group_changed(self, event: WatchEvent[dict[str, Any]]) -> None:
        key, size = read_pod_group(event.object)
        self._pass_on(PodGroupObserved(key, None if event.kind is EventKind.DELETED else size))


#: Owners that are asked about at the same time.
_AT_ONCE = 8
#: Seconds until an owner is asked about again of which the server could not say anything. The pod waits as a young one.
_AGAIN = 5.0


def unknown_owners(slicer: Slicer) -> Iterator[Owner]:
    """Returns the owners of pods about which somebody should ask the API server."""
    return chain(slicer.state.ages.unknown_owners, *(each.unknown_owners for each in slicer.proposers))


class PodOwners(ClusterInput):
    """Asks about the owners that the slicer does not know (:func:`unknown_owners`).

    It needs ``get`` for Jobs, ReplicaSets and StatefulSets, and what the readers need.

    Args:
        runtime: access to the cluster.
        slicer: takes the events.
        changed: called after each event.
        readers: the first reads what an owner belongs to; without any it is only asked if the owner exists.
    """

    def __init__(
        self, runtime: KubeRuntime, slicer: Slicer, changed: Callable[[], None], readers: Sequence[OwnerReader] = ()
    ) -> None:
        super().__init__(runtime, slicer, changed)
        self._readers = readers
        self._due = asyncio.Event()

    def look(self) -> None:
        """Begins to ask if there is something to ask about."""
        if any(True for _ in unknown_owners(self._slicer)):
            self._due.set()

    async def run(self) -> None:
        """Asks until cancelled."""
        while True:
            await self._due.wait()
            self._due.clear()
            while owners := [*dict.fromkeys(islice(unknown_owners(self._slicer), _AT_ONCE))]:
                answers = await asyncio.gather(*map(self._look_up, owners))
                for answer in answers:
                    if answer is not None:
                        self._pass_on(answer)
                if None in answers:
                    await self._clock.sleep(_AGAIN)

    async def _look_up(self, owner: Owner) -> OwnerLookedUp | None:
        """Returns what an owner of this name and UID belongs to; None if that is not known."""
        try:
            return OwnerLookedUp(owner, await self._read(owner))
        except (ApiError, OSError) as error:
            is_final = isinstance(error, ApiError) and error.code < 500 and error.code not in {401, 408, 429}
            return OwnerLookedUp(owner, None) if is_final else None

    async def _read(self, owner: Owner) -> Workload | None:
        """Returns what an owner belongs to; None if the object of its name is another, or nobody reads its kind."""
        if self._readers:
            return await self._readers[0](owner)
        kind, _, name = owner.maker.partition("/")
        match kind:
            case "Job":
                found = await self._client.get(JOBS.metadata_only(), name, owner.namespace)
            case "ReplicaSet":
                found = await self._client.get(REPLICASETS.metadata_only(), name, owner.namespace)
            case "StatefulSet":
                found = await self._client.get(STATEFULSETS.metadata_only(), name, owner.namespace)
            case _:
                return None
        return Workload(owner.uid, 0) if str(found.metadata.uid) == owner.uid else None


class GateOwners(ClusterInput):
    """Asks now and then which of these operators exist; every account may ask which API groups a server serves."""

    def __init__(self, runtime: KubeRuntime, slicer: Slicer, changed: Callable[[], None]) -> None:
        super().__init__(runtime, slicer, changed)
        #: The last answers; None before the first.
        self._known: frozenset[str] | None = None

    async def run(self) -> None:
        """Looks until cancelled."""
        pause = LOOK_AGAIN
        while True:
            await self._clock.sleep(pause)
            pause = min(pause * 2, LOOK_SELDOM)
            await self.look()

    async def look(self) -> None:
        """Looks once; without an answer the former one counts, and at first none exists."""
        try:
            found = frozenset([gate for gate, group in LAST_GATES.items() if await self._client.serves(group)])
        except (ApiError, ConnectionError, TimeoutError):
            found = self._known or frozenset()
        if found != self._known:
            self._known = found
            self._pass_on(LastGatesObserved(found))
