"""The store of all objects: one global resourceVersion, a map per resource, and the changes of the recent past.

Rules:

1. A stored object never changes; a write stores a new one. Returned objects are shared and read-only.
2. A write names the object it replaces. If another one is stored by now, the write fails (:class:`Stale`) and
   nothing has happened. There is no await in here, so a write is atomic.
3. Every write is one :class:`Change` with its own version, kept in a ring per resource and shown to that resource's
   listeners at once, in the order of the writes. A past state is the present one with the ring's changes undone.
4. An object is encoded once per version and representation, however many clients read it.

The store knows neither verbs nor kinds.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from tessera_lab.apiserver.interfaces import GroupResource, Obj

_ENCODER = msgspec.json.Encoder()

#: Default number of changes kept per resource.
HISTORY = 4096


class Stale(Exception):  # noqa: N818 - a condition that callers handle, not a fault
    """The stored object is no longer the one that the write wanted to replace."""


class TooOld(Exception):  # noqa: N818 - a condition that callers handle, not a fault
    """The history of a version is gone; ``oldest`` is the oldest version that can still be read."""

    def __init__(self, requested: int, oldest: int) -> None:
        super().__init__(f"too old resource version: {requested} ({oldest})")
        self.oldest = oldest


class StoredObject:
    """One version of one object. ``obj`` is read-only; ``forms`` keeps its encodings by representation."""

    __slots__ = ("forms", "obj", "rv")

    def __init__(self, obj: Obj, rv: int) -> None:
        self.obj = obj
        self.rv = rv
        self.forms: dict[Any, bytes] = {}

    def form(self, key: object, build: Callable[[Obj], Any]) -> bytes:
        """Returns the encoding that ``build`` makes of the object, cached under ``key``."""
        found = self.forms.get(key)
        if found is None:
            found = self.forms[key] = _ENCODER.encode(build(self.obj))
        return found


class Change:
    """One write. ``old`` is None for ADDED; for DELETED ``new`` is the last state with the deletion's version."""

    __slots__ = ("frames", "kind", "new", "old", "rv")

    def __init__(self, kind: str, new: StoredObject, old: StoredObject | None) -> None:
        self.kind = kind
        self.new = new
        self.old = old
        self.rv = new.rv
        self.frames: dict[Any, bytes] = {}


class _ResourceHistory:
    """Objects and history of one resource."""

    def __init__(self, history: int) -> None:
        self.objects: dict[str, dict[str, StoredObject]] = {}
        self.ring: deque[Change] = deque(maxlen=history)
        self.dropped = 0
        self.last = 0
        self.listeners: list[Callable[[Change], None]] = []

    def note(self, change: Change) -> None:
        if len(self.ring) == self.ring.maxlen:
            self.dropped = self.ring[0].rv
        self.last = change.rv
        self.ring.append(change)


class Store:
    """All objects of the server. It implements :class:`~tessera_lab.apiserver.interfaces.ObjectReader` for the parts.

    Args:
        history: changes kept per resource; a watch from an older version gets 410.
    """

    def __init__(self, history: int = HISTORY) -> None:
        self._history = history
        self._histories: dict[GroupResource, _ResourceHistory] = {}
        self._unseen: deque[tuple[_ResourceHistory, Change]] = deque()
        self._showing = False
        self.rv = 1

    def _history_of(self, resource: GroupResource) -> _ResourceHistory:
        history = self._histories.get(resource)
        if history is None:
            history = self._histories[resource] = _ResourceHistory(self._history)
        return history

    def _announce(self, history: _ResourceHistory, change: Change) -> None:
        """Calls the listeners with a change; a change that a listener makes waits until all have got this one."""
        history.note(change)
        self._unseen.append((history, change))
        if self._showing:
            return
        self._showing = True
        try:
            while self._unseen:
                history, change = self._unseen.popleft()
                for listener in history.listeners:
                    listener(change)
        finally:
            self._showing = False

    def listen(self, resource: GroupResource, listener: Callable[[Change], None]) -> None:
        """Calls ``listener`` with every later change of the resource, inside the write."""
        self._history_of(resource).listeners.append(listener)

    def find(self, resource: GroupResource, namespace: str, name: str) -> StoredObject | None:
        """The stored object, ``namespace`` empty for a cluster-scoped one."""
        history = self._histories.get(resource)
        return history.objects.get(namespace, {}).get(name) if history else None

    def put(self, resource: GroupResource, obj: Obj, replaces: StoredObject | None) -> StoredObject:
        """Stores an object in place of ``replaces`` (None: there must be none) and sets its resourceVersion.

        ``obj`` belongs to the store from now on.

        Raises:
            Stale: something else is stored.
        """
        meta = obj["metadata"]
        namespace, name = meta.get("namespace") or "", meta["name"]
        history = self._history_of(resource)
        objects = history.objects.setdefault(namespace, {})
        if objects.get(name) is not replaces:
            raise Stale
        self.rv += 1
        meta["resourceVersion"] = str(self.rv)
        stored = objects[name] = StoredObject(obj, self.rv)
        self._announce(history, Change("MODIFIED" if replaces else "ADDED", stored, replaces))
        return stored

    def remove(self, resource: GroupResource, last: Obj, replaces: StoredObject) -> StoredObject:
        """Removes an object; ``last`` is the state that watchers see it go in.

        Raises:
            Stale: something else is stored.
        """
        meta = last["metadata"]
        namespace, name = meta.get("namespace") or "", meta["name"]
        history = self._history_of(resource)
        if history.objects.get(namespace, {}).get(name) is not replaces:
            raise Stale
        self.rv += 1
        meta["resourceVersion"] = str(self.rv)
        del history.objects[namespace][name]
        removed = StoredObject(last, self.rv)
        self._announce(history, Change("DELETED", removed, replaces))
        return removed

    def select(self, resource: GroupResource, namespace: str | None, *, at: int | None = None) -> list[StoredObject]:
        """Objects by namespace and name; ``at`` asks for the state of an earlier version.

        Raises:
            TooOld: the version's state is not known any more.
        """
        history = self._history_of(resource)
        if at is None or at >= self.rv:
            groups = history.objects if namespace is None else {namespace: history.objects.get(namespace, {})}
            return [group[name] for _, group in sorted(groups.items()) for name in sorted(group)]
        return _past(history, namespace, at)

    def count(self, resource: GroupResource, namespace: str = "") -> int:
        """How many objects a list reads; without a namespace, those of all."""
        history = self._histories.get(resource)
        if history is None:
            return 0
        return len(history.objects.get(namespace, ())) if namespace else sum(map(len, history.objects.values()))

    def since(self, resource: GroupResource, rv: int) -> Sequence[Change]:
        """Changes later than ``rv``, oldest first.

        Raises:
            TooOld: some of them are not known any more.
        """
        history = self._history_of(resource)
        if rv < history.dropped:
            raise TooOld(rv, history.dropped)
        later: list[Change] = []
        for change in reversed(history.ring):
            if change.rv <= rv:
                break
            later.append(change)
        return later[::-1]

    def get(self, resource: GroupResource, namespace: str, name: str) -> Mapping[str, Any] | None:
        """The object for reading, or None."""
        found = self.find(resource, namespace, name)
        return found.obj if found else None

    def list(self, resource: GroupResource, namespace: str | None = None) -> Iterable[Mapping[str, Any]]:
        """The objects for reading."""
        return [stored.obj for stored in self.select(resource, namespace)]

    def revision(self, resource: GroupResource) -> int:
        """The version of the last write to the resource, 0 before the first."""
        history = self._histories.get(resource)
        return history.last if history else 0

    def forget_before(self, resource: GroupResource) -> None:
        """Empties the resource's history, as a compaction does: a watch from before now is answered 410."""
        history = self._history_of(resource)
        history.ring.clear()
        history.dropped = self.rv


def _past(history: _ResourceHistory, namespace: str | None, at: int) -> list[StoredObject]:
    if at < history.dropped:
        raise TooOld(at, history.dropped)
    state = {(ns, name): stored for ns, group in history.objects.items() for name, stored in group.items()}
    for change in reversed(history.ring):
        if change.rv <= at:
            break
        meta = change.new.obj["metadata"]
        key = (meta.get("namespace") or "", meta["name"])
        if change.old is None:
            state.pop(key, None)
        else:
            state[key] = change.old
    return [state[key] for key in sorted(state) if namespace is None or key[0] == namespace]


def deep_copy(value: Any) -> Any:
    """A JSON value that shares nothing changeable with the given one; through the encoder, which outruns a walk."""
    return msgspec.json.decode(_ENCODER.encode(value)) if isinstance(value, dict | list) else value
