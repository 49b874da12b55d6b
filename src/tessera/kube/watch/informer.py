"""Mirrors one resource for many readers: one reflector, one cache with indexes, any number of handlers."""

import random
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from tessera.clock import Clock
from tessera.kube.client.client import Client
from tessera.kube.resources.meta import Resource
from tessera.kube.watch.cache import Cache, EventKind, IndexFunction, WatchEvent
from tessera.kube.watch.reflector import Reflector

__all__ = ["Cache", "EventKind", "Informer", "WatchEvent"]

T = TypeVar("T")


class Informer(Generic[T]):
    """Keeps ``cache`` equal to the server and reports every change to the handlers.

    Args:
        client: the client that lists and watches.
        resource: the mirrored resource.
        clock: times the pauses.
        rng: for jitter.
        namespace: mirror one namespace only.
        label_selector: mirrors only matching objects.
        field_selector: mirrors only matching objects, e.g. ``spec.nodeName=n1``.
        indexes: name -> function of an object, e.g. ``{"node": lambda pod: (pod.spec.node_name,)}``.

    Attributes:
        cache: ``cache.get("ns/name")``, ``cache.by_index("node", "n1")``, ``cache.values()``. Read-only.
        reflector: its counters and version.
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
        self._handlers: list[Callable[[WatchEvent[T]], None]] = []
        self._unreadable_handlers: list[Callable[[str, str | None], None]] = []
        self._rollback_handlers: list[Callable[[], None]] = []
        self.reflector = Reflector(
            client,
            resource,
            namespace=namespace,
            label_selector=label_selector,
            field_selector=field_selector,
            on_event=self._notify,
            on_unreadable=self._notify_unreadable,
            on_rollback=self._notify_rollback,
            clock=clock,
            rng=rng,
            cache=self.cache,
        )

    def add_handler(self, handler: Callable[[WatchEvent[T]], None]) -> Callable[[], None]:
        """Calls ``handler`` for every change from now on; first, as ADDED, for each object in the cache.

        The handler must be quick and must not raise: it runs between two lines of the watch. The returned function
        removes it.
        """
        for item in self.cache.values():
            handler(WatchEvent(EventKind.ADDED, item))
        self._handlers.append(handler)
        return lambda: self._handlers.remove(handler)

    def on_unreadable(self, handler: Callable[[str, str | None], None]) -> None:
        """Calls ``handler`` with the key and error of an object that does not decode, and with None once it decodes."""
        self._unreadable_handlers.append(handler)

    def on_rollback(self, handler: Callable[[], None]) -> None:
        """Calls ``handler`` when versions went back, before the events of the list that showed it."""
        self._rollback_handlers.append(handler)

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

    def _notify(self, event: WatchEvent[T]) -> None:
        for handler in self._handlers:
            handler(event)

    def _notify_unreadable(self, key: str, error: str | None) -> None:
        for handler in self._unreadable_handlers:
            handler(key, error)

    def _notify_rollback(self) -> None:
        for handler in self._rollback_handlers:
            handler()
