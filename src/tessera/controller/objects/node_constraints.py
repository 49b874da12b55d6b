"""Constraints that a pod's spec puts on nodes: node selector, required node affinity, tolerations.

The rules are the scheduler's filters NodeUnschedulable, TaintToleration and NodeAffinity. The controller applies them
before it promises a slice, so that it pins a pod only where the scheduler can put it. A refusal has the words of the
scheduler's events, because users know them. This module applies the rules to one node;
:mod:`tessera.controller.cluster.node_index` answers for all nodes at once, and remembers the answers.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tessera.api.names import NodeName
from tessera.controller.objects.node_info import NodeInfo
from tessera.kube.resources import NodeSelectorRequirement, NodeSelectorTerm, Pod, Taint, Toleration
from tessera.kube.resources.selectors import parse_integer
from tessera.reasons.node_rules import NodeRule, RuleKind

#: Taint effects that exclude a new pod; PreferNoSchedule only lowers a node's score.
BLOCKING_EFFECTS = frozenset({"NoSchedule", "NoExecute"})
#: The reason shown to a pod about nodes that its selector or affinity excludes.
MISMATCH = NodeRule(RuleKind.AFFINITY)
#: Taint that a cordoned node carries; a pod may tolerate it.
CORDON = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")
#: The one node field that affinity may test, with the operators for it.
NAME_FIELD, FIELD_OPERATORS = "metadata.name", frozenset({"In", "NotIn"})


@dataclass(frozen=True, slots=True)
class NodeConstraints:
    """A pod's constraints on nodes. Equal constraints are tested only once.

    Attributes:
        selector: ``spec.nodeSelector`` as sorted pairs.
        terms: terms of the required node affinity, any of which must hold; None without affinity.
        tolerations: the pod's tolerations of taints.
        devices: the resources that a node must have for the pod instead of slices, as those of whole cards and shares.
    """

    selector: tuple[tuple[str, str], ...] = ()
    terms: tuple[NodeSelectorTerm, ...] | None = None
    tolerations: tuple[Toleration, ...] = ()
    devices: frozenset[str] = frozenset()
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.selector, self.terms, self.tolerations, self.devices)))

    def __hash__(self) -> int:
        return self._hash


#: The constraints of a pod that may run on any node.
ANYWHERE = NodeConstraints()


def constraints_of(pod: Pod, devices: Iterable[str] = ()) -> NodeConstraints:
    """Reads the constraints from a pod's spec, for a pod that requests these resources of whole cards and shares."""
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity is not None else None
    required = affinity.required if affinity is not None else None
    return NodeConstraints(
        selector=tuple(sorted(pod.spec.node_selector.items())),
        terms=None if required is None else required.node_selector_terms,
        tolerations=pod.spec.tolerations,
        devices=frozenset(devices),
    )


def is_tolerated(taint: Taint, tolerations: Sequence[Toleration]) -> bool:
    """True if one of these tolerations tolerates a taint."""
    return any(each.tolerates(taint.key, taint.value, taint.effect) for each in tolerations)


class TolerationIndex:
    """Tests many taints: the cost of one taint does not grow with the number of tolerations."""

    def __init__(self, tolerations: Sequence[Toleration]) -> None:
        self._exists = {(each.key, each.effect) for each in tolerations if each.operator == "Exists"}
        self._equal = {(each.key, each.value, each.effect) for each in tolerations if each.operator != "Exists"}

    def accept(self, key: str, value: str, effect: str) -> bool:
        """True if a taint with this key, value and effect is tolerated."""
        keys = {key, ""}
        if any((each, tolerated_effect) in self._exists for each in keys for tolerated_effect in (effect, "")):
            return True
        return bool(key) and any((key, value, tolerated_effect) in self._equal for tolerated_effect in (effect, ""))


def admits_node(constraints: NodeConstraints, name: NodeName, labels: Mapping[str, str]) -> bool:
    """True if selector and affinity admit a node with this name and these labels."""
    if any(labels.get(key) != value for key, value in constraints.selector):
        return False
    return constraints.terms is None or any(_term_matches(term, name, labels) for term in constraints.terms)


def _term_matches(term: NodeSelectorTerm, name: NodeName, labels: Mapping[str, str]) -> bool:
    if not term.match_expressions and not term.match_fields:
        return False
    return all(_requirement_matches(test, labels) for test in term.match_expressions) and all(
        test.operator in FIELD_OPERATORS and _requirement_matches(test, {NAME_FIELD: name})
        for test in term.match_fields
    )


def _requirement_matches(test: NodeSelectorRequirement, labels: Mapping[str, str]) -> bool:
    value = labels.get(test.key)
    match test.operator:
        case "In":
            return value in test.values
        case "NotIn":
            return value not in test.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt":
            one, bound = parse_integer(value), parse_integer(next(iter(test.values), None))
            if one is None or bound is None:
                return False
            return one > bound if test.operator == "Gt" else one < bound
        case _:
            return False


def find_refusal(constraints: NodeConstraints, node: NodeInfo) -> NodeRule | None:
    """Returns the rule by which a pod with these constraints must not be pinned to the node; None if it may.

    Looks at the node's state and the pod's constraints, not at the pods on the node.
    """
    reason = first_closed_reason(constraints, node)
    return reason if reason is not None or admits_node(constraints, node.name, node.labels) else MISMATCH


def first_closed_reason(constraints: NodeConstraints, node: NodeInfo) -> NodeRule | None:
    """Returns the first of :func:`closed_reasons`; None if the node is open to the pod."""
    return next(closed_reasons(constraints, node), None)


def closed_reasons(constraints: NodeConstraints, node: NodeInfo) -> Iterator[NodeRule]:
    """Yields every rule that closes the node to the pod, besides selector and affinity."""
    yield from node.closed_reasons(constraints.devices)
    yield from keeping_off(constraints, node)


def keeping_off(constraints: NodeConstraints, node: NodeInfo) -> Iterator[NodeRule]:
    """Yields the cordon and the taints of a node that the pod does not tolerate."""
    if node.cordoned and not is_tolerated(CORDON, constraints.tolerations):
        yield NodeRule(RuleKind.UNSCHEDULABLE)
    for taint in node.taints:
        if taint.effect in BLOCKING_EFFECTS and not is_tolerated(taint, constraints.tolerations):
            yield NodeRule(RuleKind.TAINT, f"{taint.key}: {taint.value}")
