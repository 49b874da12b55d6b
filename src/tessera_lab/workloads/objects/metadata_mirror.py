"""Watches the metadata of objects of every kind, for the garbage collector and for namespaces under deletion.

Kinds come from discovery, and again whenever a CustomResourceDefinition comes or goes. Events are left out, as in the
real garbage collector: nothing owns them and they end by themselves.
"""

import asyncio
from collections.abc import Callable, Iterable

import msgspec

from tessera.kube.client.errors import ApiError
from tessera.kube.resources import CRDS
from tessera.kube.resources.meta import PartialObject, Resource
from tessera.kube.watch.informer import Informer, WatchEvent
from tessera_lab.simulation.supervision import LabInformer
from tessera_lab.workloads.base.mirrors import ObjectMirrors

_NEEDED = frozenset({"list", "watch", "delete"})
_LEFT_OUT = frozenset({"events"})


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


Kind = Resource[PartialObject]
Handler = Callable[[Kind, WatchEvent[PartialObject]], None]

#: Index by namespace.
NAMESPACE = "namespace"


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
