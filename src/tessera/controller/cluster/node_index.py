"""All nodes by label, name and taint, to judge one pod's constraints for all nodes at once.

A set of nodes is a bit mask: an ``int`` with one bit for each node. The index has a mask for every label key and value:
the nodes that have it. A test of a pod's affinity is a few operations on such masks, whatever the number of nodes. So
the cost of a pod depends only on its spec, whose size is bounded (:mod:`tessera.api.pods.size_limits`). The index
remembers the answer until a label that it depends on, a taint, or the set of nodes changes.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

from tessera.api.names import NodeName
from tessera.controller.objects.node_constraints import (
    BLOCKING_EFFECTS,
    FIELD_OPERATORS,
    NAME_FIELD,
    NodeConstraints,
    TolerationIndex,
    parse_integer,
)
from tessera.controller.objects.node_info import NodeInfo
from tessera.kube.resources import NodeSelectorRequirement, NodeSelectorTerm
from tessera.limits.planning import REMEMBERED_CONSTRAINTS, REMEMBERED_LABEL_KEYS

#: The taint of a cordoned node: key, value, effect. A pod may tolerate it.
CORDON = ("node.kubernetes.io/unschedulable", "", "NoSchedule")


Key = TypeVar("Key")
_Taint = tuple[str, str, str]


class NodeIndex:
    """Nodes, with the nodes that a pod's constraints admit.

    Attributes:
        cost: tests and values compared since this index was made; remembered answers cost nothing.
    """

    def __init__(self) -> None:
        self.cost = 0
        self._nodes: dict[NodeName, NodeInfo] = {}
        self._bits: dict[NodeName, int] = {}
        self._names: dict[int, NodeName] = {}
        self._unused: list[int] = []
        self._labels: dict[str, dict[str, int]] = {}
        self._numbers: dict[str, _Numbers] = {}
        self._taints: dict[_Taint, int] = {}
        self._offering = 0
        self._changes = 0
        self._label_changed: dict[str, int] = {}
        self._others_changed = 0
        self._selected: dict[NodeConstraints, tuple[int, int]] = {}
        self._accepted: dict[NodeConstraints, tuple[int, int]] = {}

    # Nodes

    def put(self, node: NodeInfo) -> None:
        """Takes in a node as it is now."""
        before = self._nodes.get(node.name)
        if before is None:
            bit = 1 << (self._unused.pop() if self._unused else len(self._bits))
            self._bits[node.name] = bit
            self._names[bit] = node.name
            self._others_changed = self._next()
        self._nodes[node.name] = node
        self._relabel(self._bits[node.name], before.labels if before is not None else {}, node.labels)
        self._retaint(self._bits[node.name], set(_taints(before)), set(_taints(node)))
        self._offering &= ~self._bits[node.name]
        if not any(node.closed_because()):
            self._offering |= self._bits[node.name]

    def remove(self, name: NodeName) -> None:
        """Removes a node; an unknown node is no error."""
        node = self._nodes.pop(name, None)
        if node is None:
            return
        bit = self._bits.pop(name)
        del self._names[bit]
        self._relabel(bit, node.labels, {})
        self._retaint(bit, set(_taints(node)), set())
        self._offering &= ~bit
        self._unused.append(bit.bit_length() - 1)
        self._others_changed = self._next()

    def _relabel(self, bit: int, before: Mapping[str, str], after: Mapping[str, str]) -> None:
        for key in before.keys() | after.keys():
            old, new = before.get(key), after.get(key)
            if old != new:
                values = self._labels.setdefault(key, {})
                if old is not None:
                    _clear(values, old, bit)
                if new is not None:
                    values[new] = values.get(new, 0) | bit
                if not values:
                    del self._labels[key]
                self._numbers.pop(key, None)
                self._label_changed[key] = self._next()
        if len(self._label_changed) > REMEMBERED_LABEL_KEYS:
            self._label_changed.clear()
            self._others_changed = self._next()

    def _retaint(self, bit: int, before: set[_Taint], after: set[_Taint]) -> None:
        for taint in before - after:
            _clear(self._taints, taint, bit)
        for taint in after - before:
            self._taints[taint] = self._taints.get(taint, 0) | bit
        if before != after:
            self._others_changed = self._next()

    def _next(self) -> int:
        self._changes += 1
        return self._changes

    # Answers

    def names(self, mask: int) -> frozenset[NodeName]:
        """Returns the nodes of a mask; the cost grows with their number."""
        found = []
        while mask:
            lowest = mask & -mask
            mask ^= lowest
            if lowest in self._names:
                found.append(self._names[lowest])
        return frozenset(found)

    def mask_of(self, name: NodeName) -> int:
        """Returns a node's bit; 0 for an unknown node."""
        return self._bits.get(name, 0)

    def open_to(self, constraints: NodeConstraints) -> int:
        """Returns the nodes that a pod may be pinned to: ready, open for slices, selected, no untolerated taint."""
        return self._offering & self.selected(constraints) & self._untainted(constraints)

    def selected(self, constraints: NodeConstraints) -> int:
        """Returns the nodes that selector and affinity admit."""
        known = self._selected.pop(constraints, None)
        if known is None or self._stale(known[0], constraints):
            known = (self._changes, self._select(constraints))
        self._remember(self._selected, constraints, known)
        return known[1]

    def domains(self, key: str) -> Mapping[str, int]:
        """Returns the nodes of each value of a label."""
        return self._labels.get(key, {})

    def label(self, name: NodeName, key: str) -> str | None:
        """Returns a node's value of a label."""
        node = self._nodes.get(name)
        return node.labels.get(key) if node is not None else None

    def untainted(self, constraints: NodeConstraints) -> int:
        """Returns the nodes that have no untolerated taint."""
        return self._untainted(constraints)

    def _untainted(self, constraints: NodeConstraints) -> int:
        known = self._accepted.pop(constraints, None)
        if known is None or known[0] < self._others_changed:
            accepts = TolerationIndex(constraints.tolerations).accept
            self.cost += len(self._taints) + len(constraints.tolerations)
            refused = (mask for taint, mask in self._taints.items() if not accepts(*taint))
            known = (self._changes, self._every & ~_union(refused))
        self._remember(self._accepted, constraints, known)
        return known[1]

    def _stale(self, version: int, constraints: NodeConstraints) -> bool:
        if version < self._others_changed:
            return True
        return version < self._changes and any(self._label_changed.get(key, 0) > version for key in _keys(constraints))

    @staticmethod
    def _remember(memo: dict[NodeConstraints, tuple[int, int]], key: NodeConstraints, value: tuple[int, int]) -> None:
        memo[key] = value
        if len(memo) > REMEMBERED_CONSTRAINTS:
            del memo[next(iter(memo))]

    # Judging

    @property
    def _every(self) -> int:
        return (1 << (len(self._bits) + len(self._unused))) - 1

    def _select(self, constraints: NodeConstraints) -> int:
        mask = self._every
        self.cost += 1 + len(constraints.selector)
        for key, value in constraints.selector:
            mask &= self._labels.get(key, {}).get(value, 0)
        return mask if constraints.terms is None else mask & _union(map(self._term, constraints.terms))

    def _term(self, term: NodeSelectorTerm) -> int:
        self.cost += 1
        if not term.match_expressions and not term.match_fields:
            return 0
        mask = self._every
        for test in term.match_expressions:
            mask &= self._label_test(test)
        for test in term.match_fields:
            mask &= self._field_test(test)
        return mask

    def _label_test(self, test: NodeSelectorRequirement) -> int:
        self.cost += 1 + len(test.values)
        match test.operator:
            case "In" | "NotIn":
                return self._listed(test, self._labels.get(test.key, {}))
            case "Exists":
                return self._numbered(test.key).any
            case "DoesNotExist":
                return self._every & ~self._numbered(test.key).any
            case "Gt" | "Lt":
                bound = parse_integer(next(iter(test.values), None))
                if bound is None:
                    return 0
                numbers = self._numbered(test.key)
                return numbers.above(bound) if test.operator == "Gt" else numbers.below(bound)
            case _:
                return 0

    def _field_test(self, test: NodeSelectorRequirement) -> int:
        self.cost += 1 + len(test.values)
        if test.operator not in FIELD_OPERATORS:
            return 0
        own = {name: self.mask_of(NodeName(name)) for name in test.values} if test.key == NAME_FIELD else {}
        return self._listed(test, own)

    def _listed(self, test: NodeSelectorRequirement, values: Mapping[str, int]) -> int:
        found = _union(values.get(value, 0) for value in test.values)
        return found if test.operator == "In" else self._every & ~found

    def _numbered(self, key: str) -> "_Numbers":
        if key not in self._numbers:
            self._numbers[key] = _Numbers(self._labels.get(key, {}))
        return self._numbers[key]


class _Numbers:
    """The values of one label in order of size, for comparisons.

    Attributes:
        any: the nodes that have the label, with any value.
    """

    def __init__(self, values: Mapping[str, int]) -> None:
        self.any = _union(values.values())
        rows = sorted((number, mask) for value, mask in values.items() if (number := parse_integer(value)) is not None)
        self._sizes = [number for number, _ in rows]
        self._up_to = list(_running(mask for _, mask in rows))
        self._from = list(_running(mask for _, mask in reversed(rows)))

    def below(self, bound: int) -> int:
        """Returns the nodes whose value is less."""
        return self._up_to[bisect_left(self._sizes, bound)]

    def above(self, bound: int) -> int:
        """Returns the nodes whose value is greater."""
        return self._from[len(self._sizes) - bisect_right(self._sizes, bound)]


def _running(masks: Iterable[int]) -> Iterator[int]:
    """Yields the unions of the first 0, 1, 2, ... masks."""
    union = 0
    yield union
    for mask in masks:
        union |= mask
        yield union


def _union(masks: Iterable[int]) -> int:
    union = 0
    for mask in masks:
        union |= mask
    return union


def _keys(constraints: NodeConstraints) -> Iterator[str]:
    for key, _ in constraints.selector:
        yield key
    for term in constraints.terms or ():
        for test in term.match_expressions:
            yield test.key


def _taints(node: NodeInfo | None) -> Iterator[_Taint]:
    """Yields the taints of a node; a cordon counts as its taint."""
    if node is None:
        return
    if node.cordoned:
        yield CORDON
    for taint in node.taints:
        if taint.effect in BLOCKING_EFFECTS:
            yield (taint.key, taint.value, taint.effect)


def _clear(masks: dict[Key, int], key: Key, bit: int) -> None:
    left = masks[key] & ~bit
    if left:
        masks[key] = left
    else:
        del masks[key]
