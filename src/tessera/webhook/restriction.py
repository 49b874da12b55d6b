"""The nodes that a pod's author selects: ``spec.nodeName``, ``spec.nodeSelector`` and required node affinity.

The rules are the scheduler's, those of ``k8s.io/component-helpers/scheduling/corev1/nodeaffinity``: terms are
alternatives, all tests of a term must hold, a term without tests admits no node. Taints, free room and the state of a
node do not count: a pod may wait for them. A pod that names its node bypasses the scheduler.

The types of the pod's JSON were checked before (:mod:`tessera.webhook.pod_json`).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from tessera.api.names import MIG_CONFIG_DYNAMIC, MIG_CONFIG_LABEL, is_on_demand
from tessera.kube.resources.selectors import LabelIndex, Requirement, parse_operator
from tessera.offers import Nodes
from tessera.webhook.base import SpendTime, spend_nothing

Json = Mapping[str, Any]

#: The one field of a node that affinity selects by.
NODE_NAME = "metadata.name"
#: The label with which kubelet repeats a node's name.
_HOSTNAME = "kubernetes.io/hostname"
#: Tells if a present node has this value of :data:`NODE_NAME` or of the label of its host.
IsTaken = Callable[[str, str], bool]


def none_taken(_key: str, _value: str) -> bool:
    """For a cluster without nodes."""
    return False


class AffinityTerm(msgspec.Struct, frozen=True):
    """Tests on labels and on the node's own fields, all of which must hold; ``None`` if nothing can match."""

    labels: tuple[Requirement, ...] | None
    fields: tuple[Requirement, ...] | None

    def select_nodes(self, nodes: Nodes, labels: LabelIndex, fields: LabelIndex) -> Nodes:
        """Returns those of the nodes for which the term holds."""
        if self.labels is None or self.fields is None or not (self.labels or self.fields):
            return 0
        for test in self.labels:
            nodes &= labels.nodes_matching(test.key, test.operator, test.values)
        for test in self.fields:
            nodes &= fields.nodes_matching(test.key, test.operator, test.values)
        return nodes

    def may_admit(self, labels: Mapping[str, str], is_taken: IsTaken = none_taken) -> bool:
        """True if a new node with these labels, and others that are not known, may pass; it has no present name."""
        if self.labels is None or self.fields is None or not (self.labels or self.fields):
            return False
        if any(_names_present(test, is_taken) for test in (*self.labels, *self.fields)):
            return False
        return all(test.key not in labels or test.matches(labels) for test in self.labels)

    def on_demand_layouts(self, selected: str | None) -> frozenset[str]:
        """Returns the layouts with on-demand cards that the term's tests on ``nvidia.com/mig.config`` admit.

        Args:
            selected: the layout that the pod's node selector names, ``None`` for any. If neither selector nor test
                names one, the plain layout is tested in place of all.
        """
        tests = [test for test in self.labels or () if test.key == MIG_CONFIG_LABEL]
        if selected is None:
            left = {MIG_CONFIG_DYNAMIC, *(each for test in tests for each in test.values if is_on_demand(each))}
        else:
            left = {selected} if is_on_demand(selected) else set()
        for test in tests:
            match test.operator:
                case "In":
                    left.intersection_update(test.values)
                case "NotIn":
                    left.difference_update(test.values)
                case "Exists":
                    pass
                case _:
                    left.clear()  # the node has the label, and its value is no number
        return frozenset(left)


class NodeRestriction(msgspec.Struct, frozen=True):
    """A pod's restrictions on nodes.

    Attributes:
        selector: ``spec.nodeSelector``.
        terms: alternatives of required node affinity; ``None`` without any.
        node: the node that it is bound to; empty if it is not bound.
    """

    selector: Mapping[str, str]
    terms: tuple[AffinityTerm, ...] | None
    node: str = ""

    def __bool__(self) -> bool:
        """True if the pod restricts its nodes."""
        return bool(self.selector or self.node) or self.terms is not None

    def selected_nodes(
        self, nodes: Nodes, labels: LabelIndex, fields: LabelIndex, spend: SpendTime = spend_nothing
    ) -> Nodes:
        """Returns those of the nodes that the restriction admits; calls ``spend`` before each alternative."""
        if self.node:
            nodes &= fields.nodes_matching(NODE_NAME, "In", (self.node,))
        for key, value in self.selector.items():
            nodes &= labels.nodes_matching(key, "In", (value,))
        if self.terms is None:
            return nodes
        found = 0
        for term in self.terms:
            spend()
            found |= term.select_nodes(nodes, labels, fields)
        return found

    def may_admit(
        self, labels: Mapping[str, str], spend: SpendTime = spend_nothing, is_taken: IsTaken = none_taken
    ) -> bool:
        """True if the restriction may admit a new node with these labels, and others that are not known.

        A new node has no name of a present one. Calls ``spend`` before each alternative.
        """
        if self.node and is_taken(NODE_NAME, self.node):
            return False
        if _HOSTNAME in self.selector and is_taken(_HOSTNAME, self.selector[_HOSTNAME]):
            return False
        if any(labels.get(key, value) != value for key, value in self.selector.items()):
            return False
        if self.terms is None:
            return True
        for term in self.terms:
            spend()
            if term.may_admit(labels, is_taken):
                return True
        return False

    @property
    def may_be_on_demand(self) -> bool:
        """True if the restriction on ``nvidia.com/mig.config`` alone admits nodes with cards for on-demand slicing.

        For a pod that fits no present node: such a node may still come.
        """
        selected = self.selector.get(MIG_CONFIG_LABEL)
        terms = self.terms or (AffinityTerm((), ()),)
        return any(term.on_demand_layouts(selected) for term in terms)


def _names_present(test: Requirement, is_taken: IsTaken) -> bool:
    """True if a test asks for names, all of which present nodes have."""
    if test.key not in (NODE_NAME, _HOSTNAME) or test.operator != "In":
        return False
    return all(is_taken(test.key, value) for value in test.values)


def read_restriction(spec: Json) -> NodeRestriction:
    """Reads a pod's restrictions on nodes from its ``spec``."""
    terms = required_terms(spec)
    return NodeRestriction(
        selector=spec.get("nodeSelector") or {},
        terms=None if terms is None else tuple(map(_term, terms)),
        node=spec.get("nodeName") or "",
    )


def required_terms(spec: Json) -> Sequence[Json] | None:
    """Returns the alternatives of required node affinity, ``None`` without any; an empty list admits no node."""
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    return None if required is None else required.get("nodeSelectorTerms") or ()


def _term(term: Json) -> AffinityTerm:
    return AffinityTerm(_tests(term.get("matchExpressions") or ()), _tests(term.get("matchFields") or ()))


def _tests(expressions: Sequence[Json]) -> tuple[Requirement, ...] | None:
    """Returns the tests; ``None`` if one is invalid, for which the API server refuses the pod."""
    try:
        return tuple(map(_test, expressions))
    except ValueError:
        return None


def _test(expression: Json) -> Requirement:
    sign = parse_operator(expression.get("operator") or "")
    return Requirement(expression.get("key") or "", sign, tuple(expression.get("values") or ()))
