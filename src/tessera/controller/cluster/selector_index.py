"""Rules and pods by namespace and label, to compare a selector with few pods, and a pod with few selectors.

A selector that tests a label for equality selects only pods with one of the listed values. So the index lists a pod
under each of its labels, and a selector under each value of its shortest list, both together with the namespace; each
finds the other by a key that they share. ``None`` in a key stands for any namespace, or for any label.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Generic, Protocol, TypeVar

from tessera.controller.objects.pod_relations import PodSelection

#: Values up to which a list's selector has a key for each value; a longer one is compared with its whole namespace.
_LISTED = 16

#: Namespace, and a label with its value.
Key = tuple[str | None, tuple[str, str] | None]


class IndexedItem(Hashable, Protocol):
    """A member of the index.

    Attributes:
        created: grows from one item to the next.
    """

    created: int


_Item = TypeVar("_Item", bound=IndexedItem)


class SelectorIndex(Generic[_Item]):
    """Items by key, in the order in which they were created."""

    def __init__(self) -> None:
        self._items: dict[Key, dict[_Item, None]] = {}

    def add(self, item: _Item, keys: Iterable[Key]) -> None:
        """Adds the newest item under these keys."""
        for key in keys:
            self._items.setdefault(key, {})[item] = None

    def remove(self, item: _Item, keys: Iterable[Key]) -> None:
        """Removes an item from these keys, under which it was added."""
        for key in keys:
            items = self._items[key]
            del items[item]
            if not items:
                del self._items[key]

    def since(self, version: int, keys: Iterable[Key]) -> Iterator[_Item]:
        """Yields the items under these keys that are newer than a version: key by key, the newest first."""
        for key in keys:
            for item in reversed(self._items.get(key, {})):
                if item.created <= version:
                    break
                yield item


def pod_keys(namespace: str, labels: Mapping[str, str]) -> list[Key]:
    """Returns the keys of a pod, those of its own namespace first."""
    pairs = [*labels.items(), None]
    return [*((namespace, pair) for pair in pairs), *((None, pair) for pair in pairs)]


def selection_keys(selection: PodSelection) -> list[Key]:
    """Returns the keys of a selection. A selected pod has exactly one of them; no keys if no pod can match."""
    tests, named = selection.tests, selection.namespaces
    if tests is None:
        return []
    namespace = next(iter(named)) if len(named) == 1 and selection.namespace_tests is None else None
    listed = [test for test in tests if test.operator == "In" and len(test.values) <= _LISTED]
    if not listed:
        return [(namespace, None)]
    shortest = min(listed, key=lambda test: len(test.values))
    return [(namespace, (shortest.key, value)) for value in dict.fromkeys(shortest.values)]
