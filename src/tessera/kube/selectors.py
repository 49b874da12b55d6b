"""Label and field selectors: parsed from the API's texts or structs, matched against labels or objects."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from tessera.kube.resources import LabelSelector

Operator = Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]

_OPERATORS: Mapping[str, Operator] = {name: name for name in ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")}

_SET = re.compile(r"\s*([^\s!=<>,()]+)\s+(in|notin)\s*\(([^()]*)\)\s*")
_PAIR = re.compile(r"\s*([^\s!=<>,()]+)\s*(==|=|!=|>|<)\s*([^\s!=<>,()]*)\s*")
_BARE = re.compile(r"\s*(!?)\s*([^\s!=<>,()]+)\s*")


class Requirement(msgspec.Struct, frozen=True):
    """One test on one label. ``NotIn`` holds too where the label is missing; ``Gt`` and ``Lt`` compare integers."""

    key: str
    operator: Operator
    values: tuple[str, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether the test holds."""
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
                return value is not None and self._compares(value)

    def _compares(self, value: str) -> bool:
        try:
            left, right = int(value), int(self.values[0])
        except (ValueError, IndexError):
            return False
        return left > right if self.operator == "Gt" else left < right


class Selector(msgspec.Struct, frozen=True):
    """All tests must hold; without any, everything matches."""

    requirements: tuple[Requirement, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether the labels satisfy every test."""
        return all(requirement.matches(labels) for requirement in self.requirements)


class FieldTest(msgspec.Struct, frozen=True):
    """One field, by its dotted path, equals a text or (``negated``) does not. A missing field equals ``""``."""

    path: str
    value: str
    negated: bool = False

    def matches(self, item: Mapping[str, Any]) -> bool:
        """Whether the test holds for an object as a dict."""
        return (field_text(item, self.path) == self.value) != self.negated


class FieldSelector(msgspec.Struct, frozen=True):
    """All tests must hold."""

    tests: tuple[FieldTest, ...] = ()

    def matches(self, item: Mapping[str, Any]) -> bool:
        """Whether the object satisfies every test."""
        return all(test.matches(item) for test in self.tests)


def parse_label_selector(text: str) -> Selector:
    """A selector as in a query: ``a=b,c!=d,e in (f,g),h notin (i),j,!k,l>1``.

    Raises:
        ValueError: the text is no selector.
    """
    found: list[Requirement] = []
    position = 0
    while text[position:].strip():
        requirement, position = _requirement(text, position)
        found.append(requirement)
        if position < len(text):
            if text[position] != ",":
                raise ValueError(f"label selector {text!r}: a comma is expected at {text[position:]!r}")
            position += 1
    return Selector(tuple(found))


def selector_from(spec: LabelSelector | None) -> Selector | None:
    """The selector of a ``metav1.LabelSelector``; ``None`` (which matches nothing) for ``None``.

    Raises:
        ValueError: an operator is unknown.
    """
    if spec is None:
        return None
    labels = [Requirement(key, "In", (value,)) for key, value in spec.match_labels.items()]
    tests = [Requirement(test.key, operator(test.operator), test.values) for test in spec.match_expressions]
    return Selector((*labels, *tests))


def operator(text: str) -> Operator:
    """An operator of a selector or of node affinity.

    Raises:
        ValueError: there is none of that name.
    """
    found = _OPERATORS.get(text)
    if found is None:
        raise ValueError(f"selector operator {text!r}: one of {', '.join(_OPERATORS)} is expected")
    return found


def parse_field_selector(text: str) -> FieldSelector:
    r"""A field selector as in a query: ``spec.nodeName=n1,status.phase!=Failed``; ``\\``, ``\,``, ``\=`` escape.

    Raises:
        ValueError: a term has no operator.
    """
    return FieldSelector(tuple(_field_test(text, term) for term in _split_escaped(text) if term))


def field_text(item: Mapping[str, Any], path: str) -> str:
    """A field of an object as a field selector sees it: a text, ``""`` if it is missing, ``true`` or ``false``."""
    value: Any = item
    for part in path.split("."):
        if not isinstance(value, Mapping):
            return ""
        value = value.get(part)
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


def _requirement(text: str, position: int) -> tuple[Requirement, int]:
    if match := _SET.match(text, position):
        key, word, inside = match.groups()
        values = tuple(value.strip() for value in inside.split(","))
        return Requirement(key, "In" if word == "in" else "NotIn", values), match.end()
    if match := _PAIR.match(text, position):
        key, sign, value = match.groups()
        signs: Mapping[str, Operator] = {"=": "In", "==": "In", "!=": "NotIn", ">": "Gt", "<": "Lt"}
        return Requirement(key, signs[sign], (value,)), match.end()
    if match := _BARE.match(text, position):
        absent, key = match.groups()
        return Requirement(key, "DoesNotExist" if absent else "Exists"), match.end()
    raise ValueError(f"label selector {text!r}: a label's name is expected at {text[position:]!r}")


def _field_test(text: str, term: str) -> FieldTest:
    match = re.fullmatch(r"([^=!]+)(==|!=|=)(.*)", term, re.DOTALL)
    if match is None:
        raise ValueError(f"field selector {text!r}: {term!r} needs one of =, ==, !=")
    path, sign, value = match.groups()
    return FieldTest(path.strip(), re.sub(r"\\(.)", r"\1", value), sign == "!=")


def _split_escaped(text: str) -> Sequence[str]:
    return re.findall(r"(?:\\.|[^,\\])+", text, re.DOTALL)
