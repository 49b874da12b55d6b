"""Owner garbage collection: deletes objects that have lost their last owner; and its mirror of all objects' metadata.

Rules (``pkg/controller/garbagecollector``):

* **background** (the default): the owner goes at once, its dependents after it;
* **foreground**: the owner waits, with the finalizer ``foregroundDeletion``, until no dependent that blocks is left;
* **orphan**: the dependents lose the reference, then the owner its finalizer ``orphan``;
* an owner counts by UID; one that is not in the mirror is looked up before it is taken for gone;
* an object with at least one living owner only loses the references to the dead ones.

The mirror watches the metadata of objects of every kind; namespaces under deletion use it too. Kinds come from
discovery, and again whenever a CustomResourceDefinition comes or goes. Events are left out, as in the real garbage
collector: nothing owns them and they end by themselves.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence

import msgspec

from tessera.kube.errors import ApiError, Conflict, NotFound
from tessera.kube.informer import EventKind, Informer, WatchEvent
from tessera.kube.requests import Propagation
from tessera.kube.resources import CRDS
from tessera.kube.resources.meta import OwnerReference, PartialObject, Resource
from tessera_lab.simulation.supervision import LabInformer
from tessera_lab.workloads.base.mirrors import ObjectMirrors
from tessera_lab.workloads.base.work_queue import WorkQueue

_NEEDED = frozenset({"list", "watch", "delete"})
_LEFT_OUT = frozenset({"events"})
Kind = Resource[PartialObject]
Handler = Callable[[Kind, WatchEvent[PartialObject]], None]
#: Index by namespace.
NAMESPACE = "namespace"
FOREGROUND = "foregroundDeletion"
ORPHAN = "orphan"


class _ApiResource(msgspec.Struct, rename="camel"):
    name: str
    kind: str
    namespaced: bool = False
    verbs: list[str] = []


class _ResourceList(msgspec.Struct):
    resources: list[_ApiResource] = []


class _GroupVersion(msgspec.Struct, rename="camel"):
    group_version: str
    version: str


class _Group(msgspec.Struct, rename="camel"):
    name: str
    preferred_version: _GroupVersion


class _GroupList(msgspec.Struct):
    groups: list[_Group] = []


class MetadataMirror:
    """Every object of the cluster, metadata only.

    Attributes:
        kinds: the resources mirrored now.
        complete: set once the first round of mirrors is complete.
    """

    def __init__(self, mirrors: ObjectMirrors) -> None:
        self.kinds: dict[Kind, Informer[PartialObject]] = {}
        self.complete = asyncio.Event()
        self._mirrors = mirrors
        self._handlers: list[Handler] = []
        self._running: dict[Kind, asyncio.Task[None]] = {}
        self._stale = asyncio.Event()
        self._definitions = LabInformer(mirrors.client, CRDS, clock=mirrors.clock, rng=mirrors.rng)
        self._definitions.add_handler(lambda _: self._stale.set())

    def add_handler(self, handler: Handler) -> None:
        """Calls ``handler`` for every change of every object; add handlers before :meth:`run`."""
        self._handlers.append(handler)

    def find(self, api_version: str, kind: str) -> Kind | None:
        """The resource of a kind, in whatever version it is mirrored."""
        group = api_version.rpartition("/")[0]
        return next((each for each in self.kinds if (each.group, each.kind) == (group, kind)), None)

    def in_namespace(self, namespace: str) -> Iterable[tuple[Kind, PartialObject]]:
        """Every object of a namespace."""
        for kind, mirror in self.kinds.items():
            for item in mirror.cache.by_index(NAMESPACE, namespace):
                yield kind, item

    async def run(self) -> None:
        """Mirrors until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._definitions.run())
            await self._definitions.wait_synced()
            self._stale.set()
            while True:
                await self._stale.wait()
                self._stale.clear()
                await self._follow(group)
                if not self.complete.is_set():
                    for mirror in list(self.kinds.values()):
                        await mirror.wait_synced()
                    self.complete.set()

    async def _follow(self, group: asyncio.TaskGroup) -> None:
        """Starts mirrors of new kinds and ends those of kinds that are gone."""
        found = await self._discover()
        for kind in [each for each in self.kinds if each not in found]:
            self._running.pop(kind).cancel()
            del self.kinds[kind]
        for kind in found:
            if kind not in self.kinds:
                mirror = self.kinds[kind] = self._mirror(kind)
                self._running[kind] = group.create_task(mirror.run())

    def _mirror(self, kind: Kind) -> Informer[PartialObject]:
        mirror = LabInformer(
            self._mirrors.client,
            kind,
            clock=self._mirrors.clock,
            rng=self._mirrors.rng_of(kind),
            indexes={NAMESPACE: lambda item: (item.metadata.namespace,)},
        )

        def notify(event: WatchEvent[PartialObject]) -> None:
            for handler in self._handlers:
                handler(kind, event)

        mirror.add_handler(notify)
        return mirror

    async def _discover(self) -> list[Kind]:
        """The resources that the server serves now; a group that does not answer is left out until the next round."""
        found = await self._read("/api/v1", "", "v1")
        try:
            answer = await self._mirrors.client.request("GET", "/apis")
        except (ApiError, ConnectionError, TimeoutError):
            return list(self.kinds)
        for group in msgspec.json.decode(answer.body, type=_GroupList).groups:
            preferred = group.preferred_version
            found += await self._read(f"/apis/{preferred.group_version}", group.name, preferred.version)
        return found

    async def _read(self, path: str, group: str, version: str) -> list[Kind]:
        try:
            answer = await self._mirrors.client.request("GET", path)
        except (ApiError, ConnectionError, TimeoutError):
            return [each for each in self.kinds if (each.group, each.version) == (group, version)]
        listed = msgspec.json.decode(answer.body, type=_ResourceList).resources
        return [
            Resource(group, version, each.name, each.kind, each.namespaced, PartialObject)
            for each in listed
            if "/" not in each.name and set(each.verbs) >= _NEEDED and each.name not in _LEFT_OUT
        ]


class _Item(msgspec.Struct, frozen=True):
    kind: Kind
    object: PartialObject


class GarbageCollector:
    """Deletes objects whose owners are all gone."""

    def __init__(self, mirrors: ObjectMirrors, inventory: MetadataMirror) -> None:
        self._client = mirrors.client
        self._inventory = inventory
        self._items: dict[str, _Item] = {}
        self._dependents: dict[str, dict[str, None]] = {}
        self._queue: WorkQueue[str] = WorkQueue(self._reconcile, rng=mirrors.rng)
        inventory.add_handler(self._on_event)

    async def run(self) -> None:
        """Collects until cancelled; starts when the inventory is complete."""
        await self._inventory.complete.wait()
        await self._queue.run()

    # The graph

    def _on_event(self, kind: Kind, event: WatchEvent[PartialObject]) -> None:
        meta = event.object.metadata
        for reference in event.old.metadata.owner_references if event.old is not None else ():
            self._dependents.get(reference.uid, {}).pop(meta.uid, None)
        if event.kind is EventKind.DELETED:
            del self._items[meta.uid]
            for dependent in self._dependents.get(meta.uid, ()):
                self._queue.add(dependent)
            for reference in meta.owner_references:
                self._dependents.get(reference.uid, {}).pop(meta.uid, None)
                self._queue.add(reference.uid)
            return
        self._items[meta.uid] = _Item(kind, event.object)
        for reference in meta.owner_references:
            self._dependents.setdefault(reference.uid, {})[meta.uid] = None
            if reference.uid not in self._items:
                self._queue.add(meta.uid)
        if meta.deletion_timestamp and not {FOREGROUND, ORPHAN}.isdisjoint(meta.finalizers):
            self._queue.add(meta.uid)

    def _dependents_of(self, uid: str) -> list[_Item]:
        return [self._items[each] for each in self._dependents.get(uid, ()) if each in self._items]

    # One object

    async def _reconcile(self, uid: str) -> None:
        item = self._items.get(uid)
        if item is None:
            self._forget(uid)
            return
        meta = item.object.metadata
        if meta.deletion_timestamp and ORPHAN in meta.finalizers:
            await self._orphan(item)
        elif meta.deletion_timestamp and FOREGROUND in meta.finalizers:
            await self._finish_foreground(item)
        elif meta.owner_references and not meta.deletion_timestamp:
            await self._classify_owners(item)

    def _forget(self, uid: str) -> None:
        if not self._dependents.get(uid):
            self._dependents.pop(uid, None)

    async def _classify_owners(self, item: _Item) -> None:
        """Deletes the object, or removes its references to owners that are gone."""
        solid, dangling, waiting = await self._sort(item)
        meta = item.object.metadata
        if solid:
            removed = {each.uid for each in (*dangling, *waiting)}
            if removed:
                await self._set_owners(item, [each for each in meta.owner_references if each.uid not in removed])
            return
        blocks = bool(waiting) and any(
            reference.block_owner_deletion and reference.uid == meta.uid
            for dependent in self._dependents_of(meta.uid)
            for reference in dependent.object.metadata.owner_references
        )
        await self._delete(item, foreground=blocks or FOREGROUND in meta.finalizers)

    async def _sort(self, item: _Item) -> tuple[list[OwnerReference], list[OwnerReference], list[OwnerReference]]:
        """Sorts the owners: those that exist, those that are gone, and those that wait for their dependents."""
        solid: list[OwnerReference] = []
        dangling: list[OwnerReference] = []
        waiting: list[OwnerReference] = []
        for reference in item.object.metadata.owner_references:
            owner = self._items.get(reference.uid)
            if owner is None:
                (solid if await self._lives(item, reference) else dangling).append(reference)
                continue
            meta = owner.object.metadata
            going = meta.deletion_timestamp and FOREGROUND in meta.finalizers
            (waiting if going else solid).append(reference)
        return solid, dangling, waiting

    async def _lives(self, item: _Item, reference: OwnerReference) -> bool:
        """True if an owner that is not in the mirror exists, or is of an unknown kind."""
        kind = self._inventory.find(reference.api_version, reference.kind)
        if kind is None:
            return True
        namespace = item.object.metadata.namespace if kind.namespaced else None
        try:
            found = await self._client.get(kind, reference.name, namespace)
        except NotFound:
            return False
        except ValueError:
            return False  # a namespaced owner of a cluster-scoped object: it cannot be
        return found.metadata.uid == reference.uid

    async def _finish_foreground(self, item: _Item) -> None:
        uid = item.object.metadata.uid
        blocking = [each for each in self._dependents_of(uid) if _blocks(each, uid)]
        for dependent in blocking:
            if not dependent.object.metadata.deletion_timestamp:
                await self._classify_owners(dependent)
        if not blocking:
            await self._remove_finalizer(item, FOREGROUND)

    async def _orphan(self, item: _Item) -> None:
        uid = item.object.metadata.uid
        for dependent in self._dependents_of(uid):
            references = dependent.object.metadata.owner_references
            await self._set_owners(dependent, [each for each in references if each.uid != uid])
        await self._remove_finalizer(item, ORPHAN)

    # Writes

    async def _delete(self, item: _Item, *, foreground: bool) -> None:
        meta = item.object.metadata
        propagation: Propagation = (
            "Orphan" if ORPHAN in meta.finalizers else "Foreground" if foreground else "Background"
        )
        try:
            await self._client.delete(
                item.kind,
                meta.name,
                meta.namespace or None,
                uid=meta.uid,
                resource_version=meta.resource_version,
                propagation=propagation,
            )
        except NotFound:
            return
        except Conflict:
            self._queue.add_after(meta.uid, 0.1)  # it changed: decide again from its new state

    async def _set_owners(self, item: _Item, references: Sequence[OwnerReference]) -> None:
        owners = [msgspec.to_builtins(each) for each in references]
        await self._patch(item, {"ownerReferences": owners or None})

    async def _remove_finalizer(self, item: _Item, name: str) -> None:
        await self._patch(item, {"finalizers": [each for each in item.object.metadata.finalizers if each != name]})

    async def _patch(self, item: _Item, metadata: dict[str, object]) -> None:
        meta = item.object.metadata
        try:
            await self._client.merge_patch(
                item.kind,
                meta.name,
                {"metadata": metadata},
                meta.namespace or None,
                uid=meta.uid,
                resource_version=meta.resource_version,
            )
        except NotFound:
            return
        except ApiError as error:
            if not isinstance(error, Conflict):
                raise
            self._queue.add_after(meta.uid, 0.1)


def _blocks(item: _Item, owner: str) -> bool:
    return any(each.uid == owner and each.block_owner_deletion for each in item.object.metadata.owner_references)
