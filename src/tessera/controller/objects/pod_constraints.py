"""Constraints of a pod: on nodes (selector, required affinity, tolerations), on other pods, ports and claims.

The rules are the scheduler's filters NodeUnschedulable, TaintToleration and NodeAffinity. The controller applies them
before it promises a slice, so that it pins a pod only where the scheduler can put it. A refusal has the words of the
scheduler's events, because users know them. The rules on nodes are applied to one node here;
:mod:`tessera.controller.cluster.node_index` answers for all nodes at once, and remembers the answers.

Rules about other pods, ports and claims are values: equal rules are equal values. A pod is read once, when it arrives.
:mod:`tessera.api.slice_requests` refuses a pod that wants slices and has more rules than Tessera considers. A pod
without slices matters only by rules that exclude other pods; if it has many terms, only the first ones count. The
scheduler applies all rules that Tessera leaves out.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from tessera.api.names import NodeName
from tessera.api.slice_requests import selector_values
from tessera.controller.objects.node_info import NodeInfo
from tessera.kube.resources import (
    LabelSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    Pod,
    PodAffinity,
    PodAffinityTerm,
    PodSpec,
    Taint,
    Toleration,
)
from tessera.kube.resources.selectors import Requirement, make_selector, parse_integer
from tessera.limits import POD_AFFINITY_TERMS, SELECTOR_VALUES
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
#: Most images of a pod that count, the first ones.
_IMAGES = 16


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


#: Most labels of a pod that rules about other pods are compared with, the first ones in alphabetical order. Pods have a
#: dozen; the API server allows 50,000, and each is an entry of an index.
POD_LABELS = 64

#: A pod's labels as sorted pairs.
Labels = tuple[tuple[str, str], ...]
#: Protocol, host address and port.
HostPort = tuple[str, str, int]
#: The address that stands for all addresses of a host.
ANY_ADDRESS = "0.0.0.0"

#: Tests that must all hold, sorted so that equal selectors are equal values; None matches nothing.
Tests = tuple[Requirement, ...] | None

#: Values of a test that can be compared at the cost of one comparison.
_VALUES_A_STEP = 16


@dataclass(frozen=True, slots=True)
class PodSelection:
    """The pods that a rule selects.

    Attributes:
        namespaces: the namespaces that the rule names.
        namespace_tests: tests on the labels of further namespaces; None if there are no further ones.
        tests: tests on the pod's labels.
        weight: the cost of comparing one pod, in steps.
    """

    namespaces: frozenset[str]
    namespace_tests: Tests
    tests: Tests
    weight: int = field(init=False, repr=False, compare=False)
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        tests = (*(self.tests or ()), *(self.namespace_tests or ()))
        object.__setattr__(self, "weight", 1 + sum(1 + len(test.values) // _VALUES_A_STEP for test in tests))
        object.__setattr__(self, "_hash", hash((self.namespaces, self.namespace_tests, self.tests)))

    def __hash__(self) -> int:
        return self._hash


@dataclass(frozen=True, slots=True)
class PodAffinityRule:
    """A term of affinity or anti-affinity to pods."""

    selection: PodSelection
    key: str


@dataclass(frozen=True, slots=True)
class TopologySpread:
    """A topology spread constraint.

    Attributes:
        selection: the pods that are counted.
        key: the node label.
        skew: how many more pods a domain may have than the emptiest domain.
        domains: the least number of domains; with fewer, the emptiest counts as having no pods.
        honors_affinity: True if only nodes count that the pod's selector and affinity admit.
        honors_taints: True if only nodes count that have no untolerated taint.
    """

    selection: PodSelection
    key: str
    skew: int
    domains: int
    honors_affinity: bool
    honors_taints: bool


@dataclass(frozen=True, slots=True)
class PodRelations:
    """A pod's rules about other pods.

    Attributes:
        affinity: required pod affinity.
        anti_affinity: required pod anti-affinity.
        spread: hard spread constraints.
    """

    affinity: tuple[PodAffinityRule, ...] = ()
    anti_affinity: tuple[PodAffinityRule, ...] = ()
    spread: tuple[TopologySpread, ...] = ()

    @property
    def count(self) -> int:
        """Returns the number of rules."""
        return len(self.affinity) + len(self.anti_affinity) + len(self.spread)

    @property
    def selections(self) -> Iterator[PodSelection]:
        """Yields the selections of these rules, in their order."""
        for term in (*self.affinity, *self.anti_affinity):
            yield term.selection
        for rule in self.spread:
            yield rule.selection


#: The relations of a pod without rules about other pods.
NO_RELATIONS = PodRelations()


def read_relations(pod: Pod, *, wants_slices: bool) -> PodRelations:
    """Reads a pod's rules; for a pod without slices, only those that exclude other pods."""
    spec, namespace = pod.spec, pod.metadata.namespace
    affinity = spec.affinity
    spread = spec.topology_spread_constraints if wants_slices else ()
    if affinity is None and not spread:
        return NO_RELATIONS
    try:
        return PodRelations(
            affinity=_terms(affinity.pod_affinity, namespace) if affinity is not None and wants_slices else (),
            anti_affinity=_terms(affinity.pod_anti_affinity, namespace) if affinity is not None else (),
            spread=tuple(read_spreads(pod, "DoNotSchedule")) if spread else (),
        )
    except ValueError:  # an operator that no API server lets through
        return NO_RELATIONS


def read_labels(pod: Pod) -> Labels:
    """Returns a pod's labels; if it has too many, the first ones in their order."""
    return tuple(sorted(pod.metadata.labels.items())[:POD_LABELS])


def read_host_ports(spec: PodSpec) -> frozenset[HostPort]:
    """Returns the host ports that a pod uses, sidecars included."""
    sidecars = [each for each in spec.init_containers if each.restart_policy == "Always"]
    return frozenset(
        (port.protocol or "TCP", port.host_ip or ANY_ADDRESS, number)
        for container in (*spec.containers, *sidecars)
        for port in container.ports
        if (number := port.host_port or (port.container_port if spec.host_network else 0))
    )


def read_images(spec: PodSpec) -> tuple[str, ...]:
    """Returns the images of a pod's containers and volumes, by the names that a node's status has."""
    named = [each.image for each in (*spec.init_containers, *spec.containers)]
    named += [each.image.reference for each in spec.volumes if each.image is not None]
    return tuple(sorted({_full_name(each) for each in islice(named, _IMAGES) if each}))


def _full_name(image: str) -> str:
    """Returns an image with its host and tag: Docker's are understood by default."""
    host, slash, _ = image.partition("/")
    if not slash:
        image = f"docker.io/library/{image}"
    elif not any(each in host for each in ".:") and host != "localhost":
        image = f"docker.io/{image}"
    return image if "@" in image or image.rfind(":") > image.rfind("/") else f"{image}:latest"


def read_claims(pod: Pod) -> tuple[str, ...]:
    """Returns the claims that a pod uses, as ``namespace/name``."""
    meta = pod.metadata
    found = []
    for volume in pod.spec.volumes:
        if volume.persistent_volume_claim is not None:
            found.append(f"{meta.namespace}/{volume.persistent_volume_claim.claim_name}")
        elif volume.ephemeral is not None:
            found.append(f"{meta.namespace}/{meta.name}-{volume.name}")
    return tuple(found)


def read_device_claims(pod: Pod) -> tuple[str, ...]:
    """Returns the ResourceClaims that a pod uses, as ``namespace/name``; empty for one that is still to be made."""
    if not pod.spec.resource_claims:
        return ()
    made = {each.name: each.resource_claim_name for each in pod.status.resource_claim_statuses}
    found = []
    for claim in pod.spec.resource_claims:
        name = claim.resource_claim_name or made.get(claim.name)
        if name or name is None:  # else the pod needs none
            found.append(f"{pod.metadata.namespace}/{name}" if name else "")
    return tuple(dict.fromkeys(found))


def _terms(rule: PodAffinity | None, namespace: str) -> tuple[PodAffinityRule, ...]:
    found = dict.fromkeys(
        read_term(term, namespace)
        for term in islice(rule.required if rule is not None else (), POD_AFFINITY_TERMS)
        if selector_values(term) <= SELECTOR_VALUES
    )
    return tuple(found)


def read_term(term: PodAffinityTerm, namespace: str) -> PodAffinityRule:
    """Reads one term of a pod of this namespace."""
    selection = _selection(term.label_selector, namespace, term.namespaces, term.namespace_selector)
    return PodAffinityRule(selection, term.topology_key)


def _selection(
    selector: LabelSelector | None,
    namespace: str,
    namespaces: Iterable[str] = (),
    namespace_selector: LabelSelector | None = None,
) -> PodSelection:
    named = frozenset(namespaces)
    if not named and namespace_selector is None:
        named = frozenset({namespace})
    return PodSelection(named, _tests(namespace_selector), _tests(selector))


def read_spreads(pod: Pod, effect: str) -> Iterable[TopologySpread]:
    """Reads the spread constraints that have this effect where they cannot be satisfied."""
    labels, namespace = pod.metadata.labels, pod.metadata.namespace
    for rule in pod.spec.topology_spread_constraints:
        if rule.when_unsatisfiable != effect:
            continue
        selection = _selection(rule.label_selector, namespace)
        keys = [Requirement(key, "In", (labels[key],)) for key in rule.match_label_keys if key in labels]
        if keys:  # older API servers do not write them into the selector
            selection = PodSelection(selection.namespaces, None, _sort_tests((*(selection.tests or ()), *keys)))
        yield TopologySpread(
            selection,
            rule.topology_key,
            rule.max_skew,
            rule.min_domains or 1,
            rule.node_affinity_policy != "Ignore",
            rule.node_taints_policy == "Honor",
        )


def _tests(selector: LabelSelector | None) -> Tests:
    found = make_selector(selector)
    return None if found is None else _sort_tests(found.requirements)


def _sort_tests(tests: Iterable[Requirement]) -> tuple[Requirement, ...]:
    return tuple(sorted(set(tests), key=lambda test: (test.key, test.operator, test.values)))
