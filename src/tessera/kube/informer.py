"""Mirrors one resource for many readers: one reflector, one cache with indexes, any number of handlers.

:class:`InformerGroup` runs several informers until the cluster reaches a state.

:class:`OptionalKind` watches a kind that a cluster may not serve. Everybody may read discovery, so a cluster without
the kind costs one small request a minute, later less, and no log line. The kind is watched once it is served.
"""

import asyncio
import dataclasses
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from operator import attrgetter
from typing import Any, Generic, TypeVar

import msgspec

from tessera.clock import Clock
from tessera.kube.cache import Cache, EventKind, IndexFunction, WatchEvent
from tessera.kube.client import Client
from tessera.kube.errors import ApiError, Forbidden
from tessera.kube.reflector import Reflector, WatchScope
from tessera.kube.resources.meta import Resource, key

__all__ = ["Cache", "EventKind", "Informer", "WatchEvent"]

T = TypeVar("T")


class _Handlers(Generic[T]):
    """The handlers of an informer, in the order in which they were added; its reflector's listener."""

    def __init__(self) -> None:
        self.of_changes: list[Callable[[WatchEvent[T]], None]] = []
        self.of_deletions: list[Callable[[T], None]] = []
        self.of_unreadable: list[Callable[[str, str | None], None]] = []
        self.of_rollbacks: list[Callable[[], None]] = []
        self.of_missing: list[Callable[[bool], None]] = []

    def object_changed(self, event: WatchEvent[T]) -> None:
        for handler in self.of_changes:
            handler(event)
        if event.kind is EventKind.DELETED:
            for deleted in self.of_deletions:
                deleted(event.object)

    def object_unreadable(self, key: str, error: str | None) -> None:
        for handler in self.of_unreadable:
            handler(key, error)

    def versions_went_back(self) -> None:
        for handler in self.of_rollbacks:
            handler()

    def kind_missing(self, *, missing: bool) -> None:
        for handler in self.of_missing:
            handler(missing)


class Informer(Generic[T]):
    """Keeps ``cache`` equal to the server and reports every change to the handlers.

    Args:
        client: the client that lists and watches.
        resource: the mirrored resource.
        clock: times the pauses.
        rng: for jitter.
        namespace: mirror one namespace only.
        label_selector: mirror only matching objects.
        field_selector: mirror only matching objects, e.g. ``spec.nodeName=n1``.
        indexes: name -> function of an object, e.g. ``{"node": lambda pod: (pod.spec.node_name,)}``.

    Attributes:
        cache: ``cache.get("ns/name")``, ``cache.by_index("node", "n1")``, ``cache.values()``. Read-only.
        reflector: lists and watches; has the counters and the version.
    """

    def __init__(
        self,
        client: Client,
        resource: Resource[T],
        *,
        clock: Clock,
        rng: random.Random,
        namespace: str | None = None,
        label_selector: str | None = None,
        field_selector: str | None = None,
        indexes: Mapping[str, IndexFunction[T]] | None = None,
    ) -> None:
        self.cache: Cache[T] = Cache(indexes)
        self._handlers: _Handlers[T] = _Handlers()
        self.reflector = Reflector(
            client,
            resource,
            listener=self._handlers,
            clock=clock,
            rng=rng,
            scope=WatchScope(namespace=namespace, label_selector=label_selector, field_selector=field_selector),
            cache=self.cache,
        )

    def add_handler(
        self,
        handler: Callable[[WatchEvent[T]], None],
        *,
        only: Callable[[T], bool] | None = None,
        reads: Callable[[T], object] | None = None,
    ) -> Callable[[], None]:
        """Calls ``handler`` for every change from now on; first, as ADDED, for each object in the cache.

        The handler must be quick and must not raise: it runs between two lines of the watch. The returned function
        removes it; a handler of the same informer must not call that.

        Args:
            handler: takes the events.
            only: True for the objects of which it takes events; by default all.
            reads: what it reads of an object, quickly, as a value; a modification that leaves this equal is no change
                for it. By default it reads everything.
        """
        wanted = handler
        if only is not None or reads is not None:
            wanted = partial(_filter, handler, only, reads)
        for item in self.cache.values():
            wanted(WatchEvent(EventKind.ADDED, item))
        self._handlers.of_changes.append(wanted)
        return lambda: self._handlers.of_changes.remove(wanted)

    def on_deleted(self, handler: Callable[[T], None]) -> None:
        """Calls ``handler`` with each object that is deleted, as it was last."""
        self._handlers.of_deletions.append(handler)

    def on_unreadable(self, handler: Callable[[str, str | None], None]) -> None:
        """Calls ``handler`` with the key and error of an object that does not decode, and with None once it decodes."""
        self._handlers.of_unreadable.append(handler)

    def on_rollback(self, handler: Callable[[], None]) -> None:
        """Calls ``handler`` when versions went back, before the events of the list that showed it."""
        self._handlers.of_rollbacks.append(handler)

    def on_missing(self, handler: Callable[[bool], None]) -> None:
        """Calls ``handler`` with True when the server ceases to know the kind, with False once it knows it again."""
        self._handlers.of_missing.append(handler)

    @property
    def synced(self) -> bool:
        """True if the handlers have received the first list."""
        return self.reflector.synced.is_set()

    async def wait_synced(self) -> None:
        """Returns once the handlers have received the first list."""
        await self.reflector.synced.wait()

    async def run(self) -> None:
        """Mirrors until cancelled."""
        await self.reflector.run()


class ObjectInformer(Informer[T]):
    """Mirrors the one object of a name.

    Args:
        client: the client that lists and watches.
        resource: the kind of the object.
        name: its name.
        clock: times the pauses.
        rng: for jitter.
        namespace: its namespace; None for a kind without any.
    """

    def __init__(
        self,
        client: Client,
        resource: Resource[T],
        name: str,
        *,
        clock: Clock,
        rng: random.Random,
        namespace: str | None = None,
    ) -> None:
        by_name = f"metadata.name={name}"
        super().__init__(client, resource, clock=clock, rng=rng, namespace=namespace, field_selector=by_name)
        self._key = key(namespace, name)

    @property
    def object(self) -> T | None:
        """The object as it was last; None while there is none."""
        return self.cache.get(self._key)


def _filter(
    handler: Callable[[WatchEvent[T]], None],
    only: Callable[[T], bool] | None,
    reads: Callable[[T], object] | None,
    event: WatchEvent[T],
) -> None:
    if only is not None and not only(event.object):
        return
    before = event.old if event.kind is EventKind.MODIFIED else None
    if reads is None or before is None or reads(before) != reads(event.object):
        handler(event)


def read_parts(*fields: str, annotations: tuple[str, ...] = ()) -> Callable[[Any], object]:
    """Returns the ``reads`` of a handler that reads only parts of an object.

    Args:
        fields: the parts, such as ``status.conditions``.
        annotations: the beginnings of the names of annotations.
    """
    getters = [attrgetter(each) for each in fields]

    def read(item: Any) -> object:
        named = {each for each in item.metadata.annotations.items() if each[0].startswith(annotations)}
        return [get(item) for get in getters], named

    return read


def read_annotated(name: str) -> Callable[[Any], object]:
    """Returns the ``reads`` of a handler that reads all of the objects with this annotation, and nothing of others."""
    return lambda item: item.metadata.resource_version if name in item.metadata.annotations else ""


def read_nothing(_: object) -> None:
    """The ``reads`` of a handler that takes only objects that come or go."""


class InformerGroup:
    """Several informers whose caches one condition can read together."""

    def __init__(self, *informers: Informer[Any]) -> None:
        self._informers = informers
        self._changed = asyncio.Event()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Keeps the informers running inside the block, first waiting for their first lists.

        An exception of the block is raised unchanged, not inside an exception group.
        """
        failure: Exception | None = None
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(informer.run()) for informer in self._informers]
            for informer in self._informers:
                informer.add_handler(lambda _event: self._changed.set())
                await informer.wait_synced()
            try:
                yield
            except Exception as error:  # noqa: BLE001 - any of them, raised again below
                failure = error
            for task in tasks:
                task.cancel()
        if failure is not None:
            raise failure

    async def wait_until(self, condition: Callable[[], T | None], seconds: float, what: str) -> T:
        """Returns the first result of ``condition`` that is neither None nor False; calls it after every change.

        Raises:
            TimeoutError: there was none within ``seconds``; the text has ``what`` as the awaited condition.
        """
        try:
            async with asyncio.timeout(seconds):
                while True:
                    self._changed.clear()
                    result = condition()
                    if result is not None and result is not False:
                        return result
                    await self._changed.wait()
        except TimeoutError:
            raise TimeoutError(f"{what}: not within {seconds:.0f} seconds") from None


_log = logging.getLogger(__name__)

#: Seconds until the second check if a group is served, and most between two later ones: a cluster gets an autoscaler
#: once, and most clusters never get one.
LOOK_AGAIN, LOOK_SELDOM = 60.0, 600.0
#: Seconds until a server that has not answered is asked again whether a group is served.
ASK_AGAIN = 1.0


async def wait_served(look: Callable[[], Awaitable[T]], clock: Clock, *, seldom: float = LOOK_SELDOM) -> T:
    """Looks, with growing pauses, until the server has something; returns what was found.

    Args:
        look: returns what the server has; something false if it has it not.
        clock: times the pauses.
        seldom: most seconds between two looks.
    """
    pause = LOOK_AGAIN
    while not (found := await look()):
        await clock.sleep(pause)
        pause = min(pause * 2, seldom)
    return found


async def is_served(client: Client, group: str, clock: Clock) -> bool:
    """True if the server has an API group, or a version of one; asks until the server says so.

    True also if the identity may not ask: its list says what is missing.
    """
    while True:
        try:
            return await client.serves(group)
        except Forbidden:
            return True
        except (ApiError, ConnectionError, TimeoutError):
            await clock.sleep(ASK_AGAIN)


def describe_unlisted(informers: Iterable[Informer[Any]], advice: str) -> str:
    """Returns why first lists are missing, as the end of a sentence.

    Args:
        informers: those that are not all synced.
        advice: what to do if a right is missing; nothing else shows that one is.
    """
    errors = [each.reflector.error for each in informers if each.reflector.error is not None]
    if any(isinstance(each, Forbidden) for each in errors):
        return advice
    return f"{errors[0] if errors else 'the API server has not answered'}; it is asked again"


class _Version(msgspec.Struct, frozen=True):
    version: str = ""


class _Group(msgspec.Struct, frozen=True, rename="camel"):
    """``metav1.APIGroup``."""

    preferred_version: _Version = _Version()


class OptionalKind(Generic[T]):
    """Watches one kind that the cluster may not serve.

    Args:
        client: the API server.
        resource: the kind; of its versions, the server's preferred one is read.
        clock: the time, for pauses.
        rng: random numbers for jitter.
        on_event: see :meth:`~tessera.kube.informer.Informer.add_handler`.
        look_seldom: most seconds between two looks if the kind is served.

    Attributes:
        resource: the kind, at the version that is read.
    """

    def __init__(
        self,
        client: Client,
        resource: Resource[T],
        *,
        clock: Clock,
        rng: random.Random,
        on_event: Callable[[WatchEvent[T]], None],
        look_seldom: float = LOOK_SELDOM,
    ) -> None:
        self.resource = resource
        self._look_seldom = look_seldom
        self._client = client
        self._clock = clock
        self._rng = rng
        self._on_event = on_event

    async def run(self) -> None:
        """Waits until the kind is served and then watches it, until cancelled."""
        version = await wait_served(self._version, self._clock, seldom=self._look_seldom)
        self.resource = dataclasses.replace(self.resource, version=version)
        _log.info("follows %s at %s", self.resource.label, version)
        informer = Informer(self._client, self.resource, clock=self._clock, rng=self._rng)
        informer.add_handler(self._on_event)
        await informer.run()

    async def _version(self) -> str:
        """The server's preferred version; empty if the group is not served, or the server does not answer."""
        try:
            answer = await self._client.request("GET", f"/apis/{self.resource.group}")
            return msgspec.json.decode(answer.body, type=_Group).preferred_version.version or self.resource.version
        except (ApiError, ConnectionError, TimeoutError, msgspec.DecodeError):
            return ""
