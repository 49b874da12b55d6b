"""Label selectors as objects hold them, matched against labels."""

from collections.abc import Mapping
from typing import Literal

import msgspec

from tessera.kube.resources import LabelSelector

Operator = Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]

_OPERATORS: Mapping[str, Operator] = {name: name for name in ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")}


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
