"""Groups of pods, and terms of anti-affinity, by namespace and label.

The index limits comparisons: a selector is compared with few groups of pods, and a pod with few terms.

A selector that tests a label for equality selects only pods with one of the listed values. So the index lists a pod
under each of its labels, and a selector under each value of its shortest list, both together with the namespace; each
finds the other by a key that they share. ``None`` in a key stands for any namespace, or for any label.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Generic, TypeVar

from tessera.api.names import NodeName
from tessera.controller.objects.pod_constraints import Labels, PodAffinityRule, PodSelection

#: Values up to which a list's selector has a key for each value; a longer one is compared with its whole namespace.
_LISTED = 16

#: Namespace, and a label with its value.
Key = tuple[str | None, tuple[str, str] | None]


class PodGroup:
    """Pods of one namespace with equal labels.

    Attributes:
        all: number of these pods on each node.
        leaving: number of these pods on each node that are being deleted.
        created: the index's version when the group was added.
        changed: the index's version when the group's counts last changed.
    """

    __slots__ = ("all", "changed", "created", "labels", "leaving", "namespace")

    def __init__(self, namespace: str, labels: Labels, version: int) -> None:
        self.namespace, self.labels = namespace, dict(labels)
        self.all: Counter[NodeName] = Counter()
        self.leaving: Counter[NodeName] = Counter()
        self.created = self.changed = version


class TermHolders:
    """A term of anti-affinity, and the number of pods on each node that have it; versions as in :class:`PodGroup`."""

    __slots__ = ("changed", "created", "nodes", "term")

    def __init__(self, term: PodAffinityRule, version: int) -> None:
        self.term = term
        self.nodes: Counter[NodeName] = Counter()
        self.created = self.changed = version


_Item = TypeVar("_Item", PodGroup, TermHolders)


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
