"""Watches: an index finds the watchers of each change.

Rules:

1. A change is encoded once per representation and event type; watchers share the bytes.
2. Watchers that select one ``spec.nodeName``, name or namespace are indexed by it, so a pod's event does not cost a
   step for each of a hundred kubelets.
3. A watcher gets ADDED or DELETED when an object starts or stops matching its selector, also if the write was an
   update. Such a DELETED has the last state that matched, with the change's version (``cacher.convertToWatchEvent``).
4. The server ends a watcher that does not read, and one that fails with a change; its client gets the change when it
   watches again.

Times come from the event loop.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Hashable, Iterable

from tessera_lab.apiserver.interfaces import GroupResource
from tessera_lab.apiserver.storage.selectors import ObjectSelection, field_value
from tessera_lab.apiserver.storage.store import Change, Store, StoredObject, deep_copy

_log = logging.getLogger(__name__)

#: How often a watcher that asked for bookmarks gets one, seconds (kube-apiserver: about a minute).
BOOKMARK_PERIOD = 60.0
#: A timer may fire early by the loop's resolution, seconds.
TICK = 0.001
#: Events that a watcher may leave unread before it is ended.
BACKLOG = 50_000

#: Encodes an event from its type and its object.
Frame = Callable[[str, StoredObject], bytes]


def edge(change: Change, selection: ObjectSelection) -> tuple[str, StoredObject] | None:
    """Returns the event of a change for watchers of the selection: type and object; None for no event."""
    is_in = change.kind != "DELETED" and selection.matches(change.new.obj)
    was_in = change.old is not None and selection.matches(change.old.obj)
    if is_in:
        return ("MODIFIED" if was_in else "ADDED"), change.new
    if not was_in:
        return None
    if change.kind == "DELETED":
        return "DELETED", change.new
    return "DELETED", _last_version(change)


def _last_version(change: Change) -> StoredObject:
    assert change.old is not None
    last = {**change.old.obj, "metadata": {**change.old.obj["metadata"], "resourceVersion": str(change.rv)}}
    return StoredObject(deep_copy(last), change.rv)


class Watcher:
    """One open watch.

    Args:
        frame_key: identifies the representation; watchers with the same key share encoded events.
        frame: makes an event's bytes.
        bookmark: makes a bookmark's bytes from (version, whether it ends the initial events); None for no bookmarks.
        lifetime: seconds after which the server ends the watch.
        after: the version that the client has; the watcher gets only later changes.
    """

    def __init__(
        self,
        selection: ObjectSelection,
        frame_key: Hashable,
        frame: Frame,
        *,
        bookmark: Callable[[int, bool], bytes] | None,
        version: Callable[[], int],
        lifetime: float,
        after: int = 0,
    ) -> None:
        self.selection = selection
        self._key = frame_key
        self._frame = frame
        self._bookmark = bookmark
        self._version = version
        self._lifetime = lifetime
        self._after = after
        self._pending: list[bytes] = []
        self._waiter: asyncio.Future[None] | None = None
        self._due = False
        self._ended = False

    def offer(self, change: Change) -> None:
        """Queues the event of a change for this watcher, if there is one."""
        seen = edge(change, self.selection) if change.rv > self._after else None
        if seen is None:
            return
        kind, stored = seen
        key = (self._key, kind)
        frame = change.frames.get(key)
        if frame is None:
            frame = change.frames[key] = self._frame(kind, stored)
        self.push(frame)

    def push(self, frame: bytes) -> None:
        """Queues an encoded event."""
        self._pending.append(frame)
        self._wake()
        if len(self._pending) > BACKLOG:
            self._pending.clear()
            self.end()

    def show(self, stored: Iterable[StoredObject], *, mark_end: bool) -> None:
        """Queues the present state as ADDED events; ``mark_end`` adds the bookmark that ends them."""
        for each in stored:
            self.push(self._frame("ADDED", each))
        if mark_end and self._bookmark:
            self.push(self._bookmark(self._version(), True))

    def end(self) -> None:
        """Ends the watch once the reader has read all queued events."""
        self._ended = True
        self._wake()

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yields the stream's bytes until the watch ends; each chunk has all waiting events. To be read once."""
        loop = asyncio.get_running_loop()
        last = loop.time() + self._lifetime
        timer = loop.call_at(min(loop.time() + BOOKMARK_PERIOD, last), self._wake, True)
        try:
            while True:
                if self._pending:
                    chunk = b"".join(self._pending)
                    self._pending.clear()
                    yield chunk
                elif self._ended:
                    return
                elif self._due:
                    self._due = False
                    if loop.time() >= last - TICK:
                        return
                    timer = loop.call_at(min(loop.time() + BOOKMARK_PERIOD, last), self._wake, True)
                    if self._bookmark:
                        yield self._bookmark(self._version(), False)
                else:
                    self._waiter = loop.create_future()
                    await self._waiter
        finally:
            timer.cancel()

    def _wake(self, due: bool = False) -> None:
        """Wakes the reader; ``due`` if a timer fired."""
        self._due = self._due or due
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class WatchHub:
    """The watchers of one resource, indexed by the node, name or namespace that they select."""

    def __init__(self) -> None:
        self._by_key: dict[Hashable, dict[Watcher, None]] = {}

    def add(self, watcher: Watcher) -> None:
        """Adds a watcher, which gets later changes."""
        self._by_key.setdefault(_pin(watcher.selection), {})[watcher] = None

    def remove(self, watcher: Watcher) -> None:
        """Removes a watcher."""
        key = _pin(watcher.selection)
        watchers = self._by_key.get(key, {})
        watchers.pop(watcher, None)
        if not watchers:
            self._by_key.pop(key, None)

    def __len__(self) -> int:
        return sum(len(watchers) for watchers in self._by_key.values())

    def notify(self, change: Change) -> None:
        """Offers a change to the watchers that it may concern."""
        for key in _keys(change):
            for watcher in list(self._by_key.get(key, ())):
                try:
                    watcher.offer(change)
                except Exception:  # noqa: BLE001 - the change is stored, so nothing here may fail the write
                    _log.exception("a watch is ended by an error")
                    watcher.end()

    def end_all(self) -> None:
        """Ends every watch, as a server does when it stops."""
        for watchers in self._by_key.values():
            for watcher in watchers:
                watcher.end()


def _pin(selection: ObjectSelection) -> Hashable:
    node = selection.only_value("spec.nodeName")
    if node is not None:
        return ("node", node)
    name = selection.only_value("metadata.name")
    if name is not None:
        return ("name", name)
    return ("namespace", selection.namespace) if selection.namespace is not None else None


def _keys(change: Change) -> Iterable[Hashable]:
    meta = change.new.obj["metadata"]
    nodes = {field_value(change.new.obj, "spec.nodeName")}
    if change.old is not None:
        nodes.add(field_value(change.old.obj, "spec.nodeName"))
    return [None, ("namespace", meta.get("namespace")), ("name", meta["name"]), *(("node", node) for node in nodes)]


class WatchHubs:
    """Hubs by resource; each listens to the store from its first use on."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._hubs: dict[GroupResource, WatchHub] = {}

    def of(self, resource: GroupResource) -> WatchHub:
        """The resource's hub."""
        hub = self._hubs.get(resource)
        if hub is None:
            hub = self._hubs[resource] = WatchHub()
            self._store.listen(resource, hub.notify)
        return hub

    def end_all(self) -> None:
        """Ends every watch of every resource."""
        for hub in self._hubs.values():
            hub.end_all()
