"""Which nodes a pod's author leaves: ``spec.nodeName``, ``spec.nodeSelector`` and required node affinity.

The rules are the scheduler's, those of ``k8s.io/component-helpers/scheduling/corev1/nodeaffinity``: terms are
alternatives, all tests of a term must hold, a term without tests admits no node. Taints, room and the state of a node
are not looked at: a pod may wait for them. A pod that names its node goes around the scheduler.

A pod's JSON is read as the API server hands it over, its types already checked there.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from tessera.api.names import MIG_CONFIG_DYNAMIC, MIG_CONFIG_LABEL, is_on_demand
from tessera.kube.selectors import Requirement, operator

Json = Mapping[str, Any]


class LabelTest(msgspec.Struct, frozen=True):
    """A test on one label; long lists of values are looked up, since lists of nodes may be long."""

    requirement: Requirement
    values: frozenset[str]

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Whether a node with these labels passes."""
        value = labels.get(self.requirement.key)
        match self.requirement.operator:
            case "In":
                return value in self.values
            case "NotIn":
                return value not in self.values
            case _:
                return self.requirement.matches(labels)


class Term(msgspec.Struct, frozen=True):
    """Tests on labels, and on the node's own fields, all of which must hold; ``None`` where nothing can."""

    labels: tuple[LabelTest, ...] | None
    fields: tuple[LabelTest, ...] | None

    def admits(self, name: str, labels: Mapping[str, str]) -> bool:
        """Whether it holds for a node."""
        if self.labels is None or self.fields is None or not (self.labels or self.fields):
            return False
        return all(test.holds(labels) for test in self.labels) and all(
            test.holds({"metadata.name": name}) for test in self.fields
        )


class Restriction(msgspec.Struct, frozen=True):
    """What a pod says about its nodes.

    Attributes:
        selector: ``spec.nodeSelector``.
        terms: alternatives of required node affinity; ``None`` without any.
        node: the node that it is bound to; empty for none.
    """

    selector: Mapping[str, str]
    terms: tuple[Term, ...] | None
    node: str = ""

    def __bool__(self) -> bool:
        """Whether it says anything."""
        return bool(self.selector or self.node) or self.terms is not None

    def admits(self, name: str, labels: Mapping[str, str]) -> bool:
        """Whether a node of this name and with these labels is left."""
        if self.node not in {"", name} or any(labels.get(key) != value for key, value in self.selector.items()):
            return False
        return self.terms is None or any(term.admits(name, labels) for term in self.terms)

    @property
    def may_be_on_demand(self) -> bool:
        """Whether what it says of ``nvidia.com/mig.config`` alone leaves nodes with cards for on-demand slicing.

        For a pod that no node of today fits: the author has a kind of node in mind that may still come.
        """
        layouts = {MIG_CONFIG_DYNAMIC, *filter(is_on_demand, self._named_layouts())}
        return any(self._admits_layout(layout) for layout in layouts)

    def _named_layouts(self) -> Iterable[str]:
        yield self.selector.get(MIG_CONFIG_LABEL, "")
        for tests in self._layout_tests():
            for test in tests:
                yield from test.values

    def _layout_tests(self) -> Sequence[Sequence[LabelTest]]:
        """By alternative, the tests on the label."""
        return [
            [test for test in term.labels or () if test.requirement.key == MIG_CONFIG_LABEL]
            for term in self.terms or ()
        ]

    def _admits_layout(self, layout: str) -> bool:
        if self.selector.get(MIG_CONFIG_LABEL, layout) != layout:
            return False
        alternatives = self._layout_tests()
        labels = {MIG_CONFIG_LABEL: layout}
        return not alternatives or any(all(test.holds(labels) for test in tests) for tests in alternatives)


def restriction_of(spec: Json) -> Restriction:
    """What a pod's ``spec`` says about its nodes."""
    terms = required_terms(spec)
    return Restriction(
        selector=spec.get("nodeSelector") or {},
        terms=None if terms is None else tuple(map(_term, terms)),
        node=spec.get("nodeName") or "",
    )


def required_terms(spec: Json) -> Sequence[Json] | None:
    """The alternatives of required node affinity, ``None`` without any; of an empty list none can hold."""
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    return None if required is None else required.get("nodeSelectorTerms") or ()


def _term(term: Json) -> Term:
    return Term(_tests(term.get("matchExpressions") or ()), _tests(term.get("matchFields") or ()))


def _tests(expressions: Sequence[Json]) -> tuple[LabelTest, ...] | None:
    """The tests; ``None`` if one is none, for which the API server refuses the pod."""
    try:
        return tuple(map(_test, expressions))
    except ValueError:
        return None


def _test(expression: Json) -> LabelTest:
    values = tuple(expression.get("values") or ())
    sign = operator(expression.get("operator", ""))
    return LabelTest(Requirement(expression.get("key", ""), sign, values), frozenset(values))
