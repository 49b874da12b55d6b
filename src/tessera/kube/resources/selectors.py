"""Label selectors as objects hold them and as people write them, matched against labels."""

import re
from collections.abc import Iterator, Mapping
from typing import Literal

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
