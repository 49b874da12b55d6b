"""A cache of objects with indexes; every change of it is an event.

Pure: no I/O, no time. The events of one object are a consistent history: ADDED once, MODIFIED only while the object
    exists, DELETED once. An object that was deleted and created again with the same name gives DELETED and then ADDED,
    even if the watch missed the delete: ``metadata.uid`` distinguishes the two.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Generic, TypeVar

import msgspec

from tessera.kube.resources.meta import key_of, uid_of, version_of

T = TypeVar("T")


class EventKind(StrEnum):
    """The change of an object."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"


class WatchEvent(msgspec.Struct, Generic[T], frozen=True, gc=False):
    """One change of one object.

    Attributes:
        kind: the kind of the change.
        object: the new state; for DELETED the last one that is known.
        old: the state before, ``None`` for ADDED.
    """

    kind: EventKind
    object: T
    old: T | None = None


#: The values under which an object is found in an index; none leaves it out.
IndexFunction = Callable[[T], Iterable[str]]


class Cache(Generic[T]):
    """Objects by key (``namespace/name``, or ``name``) with named indexes.

    Args:
        indexes: name of an index -> function of an object. The function must be pure and must not raise.
    """

    def __init__(self, indexes: Mapping[str, IndexFunction[T]] | None = None) -> None:
        #: All objects by key.
        self._objects: dict[str, T] = {}
        self._functions = dict(indexes or {})
        #: By name of the index and value, the keys of the objects; a dict, so that their order is repeatable. No inner
        #: dict is empty.
        self._indexes: dict[str, dict[str, dict[str, None]]] = {name: {} for name in self._functions}

    # Reading

    def get(self, key: str) -> T | None:
        """The object of that key, or ``None``."""
        return self._objects.get(key)

    def by_index(self, index: str, value: str) -> list[T]:
        """The objects that the index holds under a value.

        Raises:
            KeyError: there is no such index.
        """
        return [self._objects[key] for key in self._indexes[index].get(value, ())]

    def values(self) -> Collection[T]:
        """All objects, as a live view: copy it before awaiting anything."""
        return self._objects.values()

    def keys(self) -> Collection[str]:
        """All keys, as a live view."""
        return self._objects.keys()

    def __len__(self) -> int:
        return len(self._objects)

    def __contains__(self, key: object) -> bool:
        return key in self._objects

    def __iter__(self) -> Iterator[T]:
        return iter(self._objects.values())

    # Changing

    def upsert(self, item: T) -> list[WatchEvent[T]]:
        """Puts a newer state of an object; the same version again changes nothing."""
        key = key_of(item)
        old = self._objects.get(key)
        if old is None:
            self._add(key, item)
            return [WatchEvent(EventKind.ADDED, item)]
        if uid_of(old) != uid_of(item):
            return self.remove(key) + self.upsert(item)
        if version_of(old) == version_of(item):
            return []
        self._replace(key, old, item)
        return [WatchEvent(EventKind.MODIFIED, item, old)]

    def remove(self, key: str, last: T | None = None) -> list[WatchEvent[T]]:
        """Drops an object; ``last`` is its final state if the watch showed it. An unknown key changes nothing."""
        old = self._objects.pop(key, None)
        if old is None:
            return []
        for name, function in self._functions.items():
            self._unindex(name, key, function(old))
        if last is None or uid_of(last) != uid_of(old):
            last = old
        return [WatchEvent(EventKind.DELETED, last, old)]

    def replace(self, items: Iterable[T], keep: Collection[str] = ()) -> Iterator[WatchEvent[T]]:
        """Replaces the content by ``items``, plus the known objects whose keys are in ``keep``.

        Lazy: each event comes after its change and before the next. Must be consumed to its end.
        """
        new = {key_of(item): item for item in items}
        for key in [key for key in self._objects if key not in new and key not in keep]:
            yield from self.remove(key)
        for item in new.values():
            yield from self.upsert(item)

    def _add(self, key: str, item: T) -> None:
        self._objects[key] = item
        for name, function in self._functions.items():
            self._index(name, key, function(item))

    def _replace(self, key: str, old: T, new: T) -> None:
        self._objects[key] = new
        for name, function in self._functions.items():
            before, after = tuple(function(old)), tuple(function(new))
            if before != after:
                self._unindex(name, key, before)
                self._index(name, key, after)

    def _index(self, name: str, key: str, values: Iterable[str]) -> None:
        index = self._indexes[name]
        for value in values:
            index.setdefault(value, {})[key] = None

    def _unindex(self, name: str, key: str, values: Iterable[str]) -> None:
        index = self._indexes[name]
        for value in values:
            keys = index.get(value)
            if keys is not None:
                keys.pop(key, None)
                if not keys:
                    del index[value]
