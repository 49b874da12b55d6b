"""Looks up the nodes that pass a test on labels, instead of testing each node.

The index holds, for each label and value, the set of nodes that have it, as a bit mask. A test costs a look-up and one
operation on masks for each of its values, so the cost of a pod's affinity grows with its text and not with the cluster.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from itertools import accumulate
from operator import or_

import msgspec

from tessera.kube.selectors import Operator
from tessera.offers.selection import Nodes

#: The integers that ``Gt`` and ``Lt`` compare: those of 64 bits, as in Kubernetes (``strconv.ParseInt``).
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
_MOST = 2**63


class LabelTest(msgspec.Struct, frozen=True):
    """A test on one label. ``NotIn`` also holds if the label is missing; ``Gt`` and ``Lt`` compare integers."""

    key: str
    operator: Operator
    values: tuple[str, ...] = ()


class _Numbers(msgspec.Struct, frozen=True):
    """The integer values of a label in order, each with the nodes that have smaller values."""

    values: tuple[int, ...]
    below: tuple[Nodes, ...]


class NodeLabelIndex:
    """Labels of nodes."""

    def __init__(self) -> None:
        self._every: Nodes = 0
        self._keys: dict[str, Nodes] = {}
        self._values: dict[str, dict[str, Nodes]] = {}
        self._numbers: dict[str, _Numbers] = {}

    def add(self, labels: Mapping[str, str], node: Nodes) -> None:
        """Adds the labels of a node, given as the set of that node alone."""
        self._every |= node
        for key, value in labels.items():
            self._keys[key] = self._keys.get(key, 0) | node
            values = self._values.setdefault(key, {})
            values[value] = values.get(value, 0) | node
            self._numbers.pop(key, None)

    def remove(self, labels: Mapping[str, str], node: Nodes) -> None:
        """Removes the labels that :meth:`add` added."""
        self._every &= ~node
        for key, value in labels.items():
            self._keys[key] &= ~node
            self._values[key][value] &= ~node
            if not self._values[key][value]:
                del self._values[key][value]
            if not self._keys[key]:
                del self._keys[key], self._values[key]
            self._numbers.pop(key, None)

    def having(self, key: str) -> Nodes:
        """Returns the nodes that have the label."""
        return self._keys.get(key, 0)

    def matching(self, test: LabelTest) -> Nodes:
        """Returns the nodes for which the test holds."""
        match test.operator:
            case "In":
                return self._in(test)
            case "NotIn":
                return self._every & ~self._in(test)
            case "Exists":
                return self.having(test.key)
            case "DoesNotExist":
                return self._every & ~self.having(test.key)
            case "Gt" | "Lt":
                return self._compared(test)

    def _in(self, test: LabelTest) -> Nodes:
        known = self._values.get(test.key)
        found = 0
        if known:
            for value in test.values:
                found |= known.get(value, 0)
        return found

    def _compared(self, test: LabelTest) -> Nodes:
        bound = _integer(test.values[0]) if test.values else None
        if bound is None or test.key not in self._values:
            return 0
        numbers = self._numbers.get(test.key)
        if numbers is None:
            numbers = self._numbers[test.key] = _numbers(self._values[test.key])
        if test.operator == "Lt":
            return numbers.below[bisect_left(numbers.values, bound)]
        return numbers.below[-1] & ~numbers.below[bisect_right(numbers.values, bound)]


def _numbers(values: Mapping[str, Nodes]) -> _Numbers:
    found = sorted((number, nodes) for text, nodes in values.items() if (number := _integer(text)) is not None)
    below = accumulate((nodes for _, nodes in found), or_, initial=0)
    return _Numbers(tuple(number for number, _ in found), tuple(below))


def _integer(text: str) -> int | None:
    if not _INTEGER.fullmatch(text):
        return None
    number = int(text)
    return number if -_MOST <= number < _MOST else None
