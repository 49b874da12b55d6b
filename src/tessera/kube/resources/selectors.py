"""Label selectors, as objects hold them and as people write them: matched against labels, and looked up for all nodes.

:class:`LabelIndex` looks up the nodes that pass a test, instead of testing each node. A set of nodes is a bit mask: an
``int`` with one bit for each node. The index has a mask for every label and value: the nodes that have it. A test costs
a look-up and one operation on masks for each of its values. So the cost of a pod's affinity grows with its text and not
with the cluster.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import accumulate
from operator import or_
from types import MappingProxyType
from typing import Literal, NamedTuple

import msgspec

from tessera.kube.resources import LabelSelector

Operator = Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]

_OPERATORS: Mapping[str, Operator] = {name: name for name in ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")}

_INTEGER = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)

# The grammar of kubectl's --selector (k8s.io/apimachinery/pkg/labels).
_KEY = r"(?P<key>[A-Za-z0-9](?:[-A-Za-z0-9_./]*[A-Za-z0-9])?)"
_FORMS = (
    re.compile(rf"{_KEY}\s+(?P<word>in|notin)\s*\((?P<values>[^()]*)\)"),
    re.compile(rf"{_KEY}\s*(?P<word>==|=|!=)\s*(?P<values>[-A-Za-z0-9_.]*)"),
    re.compile(rf"(?P<word>!?)\s*{_KEY}"),
)
_WORDS: Mapping[str, Operator] = {
    "in": "In",
    "notin": "NotIn",
    "==": "In",
    "=": "In",
    "!=": "NotIn",
    "": "Exists",
    "!": "DoesNotExist",
}


class Requirement(msgspec.Struct, frozen=True):
    """One test on one label. ``NotIn`` holds too where the label is missing; ``Gt`` and ``Lt`` compare integers."""

    key: str
    operator: Operator
    values: tuple[str, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """True if the test holds."""
        value = labels.get(self.key)
        match self.operator:
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
            case "In":
                return value in self.values
            case "NotIn":
                return value not in self.values
            case "Gt" | "Lt":
                return value is not None and self._compare(value)

    def _compare(self, text: str) -> bool:
        value, bound = parse_integer(text), parse_integer(next(iter(self.values), None))
        if value is None or bound is None:
            return False
        return value > bound if self.operator == "Gt" else value < bound


class Selector(msgspec.Struct, frozen=True):
    """All tests must hold; without any, everything matches."""

    requirements: tuple[Requirement, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """True if the labels satisfy every test."""
        return all(requirement.matches(labels) for requirement in self.requirements)


def make_selector(spec: LabelSelector | None) -> Selector | None:
    """The selector of a ``metav1.LabelSelector``; ``None`` (which matches nothing) for ``None``.

    Raises:
        ValueError: an operator is unknown.
    """
    if spec is None:
        return None
    labels = [Requirement(key, "In", (value,)) for key, value in spec.match_labels.items()]
    tests = [Requirement(test.key, parse_operator(test.operator), test.values) for test in spec.match_expressions]
    return Selector((*labels, *tests))


def parse_operator(text: str) -> Operator:
    """An operator of a selector or of node affinity.

    Raises:
        ValueError: there is none of that name.
    """
    found = _OPERATORS.get(text)
    if found is None:
        raise ValueError(f"selector operator {text!r}: one of {', '.join(_OPERATORS)} is expected")
    return found


def parse_integer(text: str | None) -> int | None:
    """Reads an integer for ``Gt`` and ``Lt`` as Go's ``ParseInt`` does, into 64 bits; None if it is no such integer."""
    if text is None or _INTEGER.fullmatch(text) is None:
        return None
    value = int(text)
    return value if -(2**63) <= value < 2**63 else None


def parse_selector(text: str) -> Selector:
    """The selector that a text such as ``app=train,tier in (a, b),!debug`` stands for; an empty one matches everything.

    Raises:
        ValueError: a part is none of the forms.
    """
    return Selector(tuple(_parse_requirement(part) for part in _split_requirements(text)))


def _split_requirements(text: str) -> Iterator[str]:
    """The text at its commas outside of parentheses."""
    return (part.strip() for part in re.findall(r"(?:[^,(]|\([^)]*\)?)+", text) if part.strip())


def _parse_requirement(part: str) -> Requirement:
    for form in _FORMS:
        found = form.fullmatch(part)
        if found is not None:
            listed = found.groupdict().get("values")
            values = () if listed is None else tuple(value.strip() for value in listed.split(","))
            return Requirement(found["key"], _WORDS[found["word"]], values)
    raise ValueError(
        f"label selector, part {part!r}: write key=value, key!=value, key in (a,b), key notin (a,b), key or !key"
    )


#: A set of nodes: bit ``n`` is the node that the caller numbers ``n``.
NodeMask = int

_NO_VALUES: Mapping[str, NodeMask] = MappingProxyType({})


class LabelIndex:
    """Labels of nodes."""

    def __init__(self) -> None:
        #: All nodes of the index, those without labels too.
        self._every: NodeMask = 0
        #: By label, the nodes that have it: the union of its masks in ``_values``. No mask is empty.
        self._having: dict[str, NodeMask] = {}
        #: By label and value, the nodes that have it. No mask and no inner dict is empty.
        self._values: dict[str, dict[str, NodeMask]] = {}
        #: The sorted integers of labels that were compared since they last changed; the keys are some of ``_values``.
        self._integers: dict[str, _Integers] = {}

    def add(self, labels: Mapping[str, str], node: NodeMask) -> None:
        """Adds a node, given as the set of that node alone."""
        self._every |= node
        for key, value in labels.items():
            self._set(key, value, node)

    def remove(self, labels: Mapping[str, str], node: NodeMask) -> None:
        """Removes a node that has these labels in the index."""
        self._every &= ~node
        for key, value in labels.items():
            self._clear(key, value, node)

    def change(self, before: Mapping[str, str], after: Mapping[str, str], node: NodeMask) -> list[str]:
        """Replaces the labels of a node; returns the keys of the labels that differ."""
        changed = [key for key in before.keys() | after.keys() if before.get(key) != after.get(key)]
        for key in changed:
            if key in before:
                self._clear(key, before[key], node)
            if key in after:
                self._set(key, after[key], node)
        return changed

    def _set(self, key: str, value: str, node: NodeMask) -> None:
        self._having[key] = self._having.get(key, 0) | node
        values = self._values.setdefault(key, {})
        values[value] = values.get(value, 0) | node
        self._integers.pop(key, None)

    def _clear(self, key: str, value: str, node: NodeMask) -> None:
        self._having[key] &= ~node
        values = self._values[key]
        values[value] &= ~node
        if not values[value]:
            del values[value]
        if not values:
            del self._having[key], self._values[key]
        self._integers.pop(key, None)

    # Answers

    def values(self, key: str) -> Mapping[str, NodeMask]:
        """Returns the nodes of each value of a label."""
        return self._values.get(key, _NO_VALUES)

    def nodes_with_key(self, key: str) -> NodeMask:
        """Returns the nodes that have the label."""
        return self._having.get(key, 0)

    def nodes_matching(self, key: str, operator: str, values: Collection[str]) -> NodeMask:
        """Returns the nodes for which a test of node affinity holds; none for an unknown operator.

        ``NotIn`` also holds if the label is missing; ``Gt`` and ``Lt`` compare integers.
        """
        match operator:
            case "In":
                return union(map(self.values(key).get, values))
            case "NotIn":
                return self._every & ~union(map(self.values(key).get, values))
            case "Exists":
                return self.nodes_with_key(key)
            case "DoesNotExist":
                return self._every & ~self.nodes_with_key(key)
            case "Gt" | "Lt":
                return self._compare(key, operator, parse_integer(next(iter(values), None)))
            case _:
                return 0

    def _compare(self, key: str, operator: str, bound: int | None) -> NodeMask:
        if bound is None or key not in self._values:
            return 0
        integers = self._integers.get(key)
        if integers is None:
            integers = self._integers[key] = _Integers.of(self._values[key])
        return integers.less(bound) if operator == "Lt" else integers.greater(bound)


class _Integers(NamedTuple):
    """The integer values of a label in order.

    Attributes:
        values: the integers.
        below: for each of them, and for the end, the nodes that have smaller values.
    """

    values: tuple[int, ...]
    below: tuple[NodeMask, ...]

    @classmethod
    def of(cls, values: Mapping[str, NodeMask]) -> "_Integers":
        rows = sorted((number, nodes) for text, nodes in values.items() if (number := parse_integer(text)) is not None)
        return cls(tuple(number for number, _ in rows), tuple(accumulate((nodes for _, nodes in rows), or_, initial=0)))

    def less(self, bound: int) -> NodeMask:
        return self.below[bisect_left(self.values, bound)]

    def greater(self, bound: int) -> NodeMask:
        return self.below[-1] & ~self.below[bisect_right(self.values, bound)]


def union(masks: Iterable[NodeMask | None]) -> NodeMask:
    """Returns the union of sets; None stands for an empty one."""
    found = 0
    for mask in masks:
        if mask:
            found |= mask
    return found
