"""The scheduler's filters NodePorts, PodTopologySpread and InterPodAffinity: rules about the pods on a node.

Pods with a promised place count as if they were on the node, and so do pods of the batch that is being planned. The
answer for a pod is a mask of nodes for each rule. It is computed once for all nodes, and again when a pod that the rule
selects comes or goes. All of this counts as work of the batch. A rule that alone would take too much work is left to
the scheduler.

The controller pins a pod to its node by the node selector. The scheduler counts a spread only over nodes that the
selector admits, unless the constraint says otherwise; so it then counts over one domain. Therefore, if a constraint
asks for a minimum number of domains, the node itself must also have few enough of the counted pods.
"""

from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from tessera.api.names import NodeName, PodUid
from tessera.controller.cluster.filters import Filter
from tessera.controller.cluster.node_index import NodeIndex
from tessera.controller.cluster.pod_index import PodIndex, SelectedPods
from tessera.controller.objects.pod_constraints import (
    ANY_ADDRESS,
    NO_RELATIONS,
    HostPort,
    Labels,
    NodeConstraints,
    PodAffinityRule,
    PodRelations,
    TopologySpread,
)
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.objects.pod_preferences import Preference, dataset_preferences, model_preferences
from tessera.kube.resources import NodeSelectorRequirement
from tessera.kube.resources.selectors import union
from tessera.limits import NEIGHBOUR_STEPS
from tessera.placement.demand import StepBudget
from tessera.reasons.node_rules import NodeRule, RuleKind

NO_PORTS = NodeRule(RuleKind.PORTS)
NO_LABEL = NodeRule(RuleKind.SPREAD_LABEL)
SKEWED = NodeRule(RuleKind.SPREAD)
NO_AFFINITY = NodeRule(RuleKind.POD_AFFINITY)
ANTI_AFFINITY = NodeRule(RuleKind.ANTI_AFFINITY)
EXISTING_ANTI_AFFINITY = NodeRule(RuleKind.OTHERS_ANTI_AFFINITY)

#: Comparisons that cost as much as asking one node about one pod.
_COMPARISONS_A_STEP = 2

#: The nodes that satisfy a rule, and the refusal text for all others.
RuleMask = tuple[int, NodeRule]


class HostPorts(Filter):
    """NodePorts. :class:`PodAffinityFilter`, which shares the pods, counts the pods of the batch.

    Args:
        pods: the pods on the nodes.
        work: the work that the batch may still cost.
    """

    def __init__(self, pods: PodIndex, work: StepBudget) -> None:
        self._pods, self._work = pods, work
        self._conflicts: dict[frozenset[HostPort], frozenset[HostPort]] = {}

    def refusal(self, pod: PodInfo, node: NodeName) -> NodeRule | None:
        """Returns a refusal if a port of the pod is taken."""
        if not pod.ports:
            return None
        conflicts = self._conflicts.get(pod.ports)
        if conflicts is None:
            self._work.spend(len(pod.ports))
            conflicts = self._conflicts[pod.ports] = frozenset(_conflicting_ports(pod.ports))
        return NO_PORTS if self._pods.uses_host_port(node, conflicts) else None

    def kind(self, pod: PodInfo) -> Hashable:
        """Returns the ports that the pod uses."""
        return pod.ports


def _conflicting_ports(ports: Iterable[HostPort]) -> Iterator[HostPort]:
    """Yields the ports that conflict with these, in the form of the index."""
    for protocol, address, number in ports:
        places = ("",) if address == ANY_ADDRESS else (address, ANY_ADDRESS)
        yield from ((protocol, place, number) for place in places)


@dataclass(frozen=True, slots=True)
class _Kind:
    """The attributes of a pod that the rules test: pods that share them get the same masks."""

    namespace: str
    labels: Labels
    relations: PodRelations
    constraints: NodeConstraints | None


@dataclass(slots=True)
class _KindMasks:
    """The rule masks for one kind of pods.

    Attributes:
        version: the version of the pod index that the masks were computed from.
        masks: every rule that concerns the pod, with the nodes that satisfy it.
        opposed: True if an anti-affinity term of another pod selects the pod.
    """

    version: int = 0
    masks: tuple[RuleMask, ...] = ()
    opposed: bool = False


def _node_tests(preference: Preference) -> Iterator[NodeSelectorRequirement]:
    if isinstance(preference.rule, NodeConstraints):
        for term in preference.rule.terms or ():
            yield from term.match_expressions


@dataclass(slots=True)
class _PreferenceMasks:
    """The nodes that satisfy each preference of alike pods, as of a version of the pod index; 0 if not computed."""

    version: int = 0
    masks: Sequence[tuple[Preference, int]] = ()


class PodAffinityFilter(Filter):
    """PodTopologySpread and InterPodAffinity for one batch.

    Args:
        pods: the pods on the nodes; includes pods of the batch until :meth:`end`.
        nodes: the nodes, which do not change during the batch.
        work: the work that the batch may still cost.
        models: by node, the models that it has.
    """

    def __init__(
        self, pods: PodIndex, nodes: NodeIndex, work: StepBudget, models: Mapping[str, Container[str]] | None = None
    ) -> None:
        self._pods, self._nodes, self._work, self._models = pods, nodes, work, models or {}
        #: By pod, its kind and the masks of that kind; ``_shared`` has one value for each kind.
        self._kinds: dict[PodUid, _Kind] = {}
        self._answers: dict[PodUid, _KindMasks] = {}
        #: By pod, and once for all that are alike, the nodes that satisfy each of its preferences.
        self._preferred: dict[PodUid, _PreferenceMasks] = {}
        self._alike: dict[Hashable, _PreferenceMasks] = {}
        self._shared: dict[_Kind, _KindMasks] = {}
        #: Pods of the batch that this filter added to ``pods``; :meth:`end` removes them.
        self._reserved: dict[PodUid, PodInfo] = {}
        #: Computed masks with the version of their inputs.
        self._masks: dict[Hashable, tuple[int, int]] = {}
        #: Value of ``pods.cost`` at which the rules of the present pod have taken too much work.
        self._limit = 0

    def refusal(self, pod: PodInfo, node: NodeName) -> NodeRule | None:
        """Returns the first rule that the node breaks."""
        bit = self._nodes.mask_of(node)
        return next((why for mask, why in self.rule_masks(pod) if not mask & bit), None)

    def kind(self, pod: PodInfo) -> Hashable:
        """Returns a key that pods with the same answers share: without own rules, the masks themselves."""
        return self.rule_masks(pod) if pod.relations == NO_RELATIONS else self._kind(pod)

    def reserve(self, pod: PodInfo, node: NodeName) -> None:
        """Counts the pod on the node; a pod that is bound or has a promised place is counted already."""
        if pod.uid not in self._pods:
            self._work.spend(len(pod.labels) // _COMPARISONS_A_STEP)
            self._reserved[pod.uid] = pod
            self._pods.put(pod, node)

    def unreserve(self, pod: PodInfo, node: NodeName) -> None:
        """Removes the pod from the counts."""
        del node
        if self._reserved.pop(pod.uid, None) is not None:
            self._pods.drop(pod.uid)

    def end(self) -> None:
        """Removes all pods of the batch from the counts; a new allocation is counted by itself."""
        for uid in list(self._reserved):
            self._pods.drop(self._reserved.pop(uid).uid)

    def is_opposed(self, pod: PodInfo) -> bool:
        """True if the batch found a term of another pod's anti-affinity that selects this pod."""
        answer = self._answers.get(pod.uid)
        return answer is not None and answer.opposed

    def rule_masks(self, pod: PodInfo) -> tuple[RuleMask, ...]:
        """Returns every rule that concerns the pod, with the nodes that satisfy it."""
        answer = self._answers.get(pod.uid)
        if answer is None:
            answer = self._answers[pod.uid] = self._shared.setdefault(self._kind(pod), _KindMasks())
        if answer.version != self._pods.version:
            before = self._pods.cost
            self._limit = before + NEIGHBOUR_STEPS
            answer.masks = tuple(self._compute_masks(pod, answer))
            answer.version = self._pods.version
            self._work.spend(1 + (self._pods.cost - before) // _COMPARISONS_A_STEP)
        return answer.masks

    def preferences(self, pod: PodInfo) -> Sequence[tuple[Preference, int]]:
        """Returns what a pod prefers, each with the nodes that satisfy it now."""
        known = self._preferred.get(pod.uid)
        if known is None:
            key = (pod.namespace, pod.labels, pod.preferences, pod.constraints, pod.claims)
            known = self._preferred[pod.uid] = self._alike.setdefault(key, _PreferenceMasks())
        asks_pods = any(not isinstance(each.rule, NodeConstraints) for each in pod.preferences)
        if not known.version or (asks_pods and known.version != self._pods.version):
            before = self._pods.cost
            self._limit = before + NEIGHBOUR_STEPS
            known.masks = [(each, self._preference_mask(each, pod)) for each in self._all_preferences(pod)]
            known.version = self._pods.version
            self._work.spend(1 + (self._pods.cost - before) // _COMPARISONS_A_STEP)
        return known.masks

    def _all_preferences(self, pod: PodInfo) -> Iterator[Preference]:
        yield from pod.preferences
        tested = {test.key for each in pod.preferences for test in _node_tests(each)}
        yield from dataset_preferences(pod.claims, lambda key: key not in tested and bool(self._nodes.domains(key)))
        yield from model_preferences(pod.namespace, pod.labels, self._models)

    def _preference_mask(self, preference: Preference, pod: PodInfo) -> int:
        match preference.rule:
            case NodeConstraints():
                return self._nodes.selected_nodes(preference.rule)
            case TopologySpread():
                return self._spread_mask(preference.rule, pod)
            case _:
                return (
                    self._anti_affinity_mask(preference.rule)
                    if preference.repels
                    else self._affinity_mask((preference.rule,), pod)
                )

    def _kind(self, pod: PodInfo) -> _Kind:
        kind = self._kinds.get(pod.uid)
        if kind is None:
            constraints = pod.constraints if pod.relations.spread else None
            kind = self._kinds[pod.uid] = _Kind(pod.namespace, pod.labels, pod.relations, constraints)
        return kind

    def _compute_masks(self, pod: PodInfo, answer: _KindMasks) -> Iterator[RuleMask]:
        relations = pod.relations
        self._pods.cost += relations.count
        for rule in relations.spread:
            yield self._nodes_with_label(rule.key), NO_LABEL
            yield self._spread_mask(rule, pod), SKEWED
        if relations.affinity:
            yield self._affinity_mask(relations.affinity, pod), NO_AFFINITY
        for term in relations.anti_affinity:
            yield self._anti_affinity_mask(term), ANTI_AFFINITY
        against = self._opposed_nodes(pod, answer)
        if against:
            yield ~against, EXISTING_ANTI_AFFINITY

    def _select(self, rule: PodAffinityRule | TopologySpread) -> SelectedPods | None:
        """Returns the pods that a rule selects; None if finding them would cost too much."""
        return self._pods.select(rule.selection, self._limit - self._pods.cost)

    # Affinity

    def _affinity_mask(self, terms: tuple[PodAffinityRule, ...], pod: PodInfo) -> int:
        """Returns the nodes whose domains have pods that all terms select.

        The first pod of a group, which its own terms select, may go to all nodes with the labels of the domains.
        """
        found = [self._select(term) for term in terms]
        selected = [each for each in found if each is not None]
        if len(selected) < len(terms):
            return -1
        version = max(each.version for each in selected)
        first = all(self._pods.selects(term.selection, pod) for term in terms)
        return self._cached_mask((terms, first), version, lambda: self._affinity_nodes(terms, selected, first=first))

    def _affinity_nodes(self, terms: tuple[PodAffinityRule, ...], selected: list[SelectedPods], *, first: bool) -> int:
        common = selected[0].all if len(selected) == 1 else self._pods.count_in_all(selected)
        allowed = -1
        for term in terms:
            allowed &= self._nodes_with_label(term.key)
        reached = [self._nodes_of_domains(term.key, common) for term in terms]
        if first and not any(reached):
            return allowed
        for mask in reached:
            allowed &= mask
        return allowed

    def _anti_affinity_mask(self, term: PodAffinityRule) -> int:
        selected = self._select(term)
        if selected is None:
            return -1
        return self._cached_mask(term, selected.version, lambda: ~self._nodes_of_domains(term.key, selected.all))

    def _opposed_nodes(self, pod: PodInfo, answer: _KindMasks) -> int:
        """Returns the nodes that other pods' anti-affinity closes to the pod."""
        found = self._pods.opposing_terms(pod.namespace, pod.labels, self._limit - self._pods.cost)
        answer.opposed = bool(found)
        against = 0
        for each in found:
            against |= self._cached_mask(each, each.changed, partial(self._nodes_of_domains, each.term.key, each.nodes))
        return against

    # Spread

    def _spread_mask(self, rule: TopologySpread, pod: PodInfo) -> int:
        """Returns the nodes whose domain may have one more pod."""
        selected = self._select(rule)
        if selected is None:
            return -1
        own = self._pods.selects(rule.selection, pod)
        counted = self._counted_nodes(rule, pod)
        return self._cached_mask(
            (rule, own, counted),
            selected.version,
            lambda: self._compute_spread(rule, selected.staying, counted, own=own),
        )

    def _compute_spread(self, rule: TopologySpread, pods: Mapping[NodeName, int], counted: int, *, own: bool) -> int:
        if not rule.selection.tests:  # an empty selector counts no pods
            pods = {}
        self._pods.cost += len(pods)
        domains = self._nodes.domains(rule.key)
        sums: dict[str, int] = {}
        for node, count in pods.items():
            value = self._nodes.label(node, rule.key)
            if value is not None and self._nodes.mask_of(node) & counted:
                sums[value] = sums.get(value, 0) + count
        total = self._domain_count(rule.key, counted)
        empty = total < rule.domains or len(sums) < total
        most = rule.skew - own + (0 if empty else min(sums.values(), default=0))
        full = union(domains[value] for value, count in sums.items() if count > most)
        if rule.honors_affinity and rule.domains > 1:
            full |= union(self._nodes.mask_of(node) for node, count in pods.items() if count + own > rule.skew)
        return self._nodes_with_label(rule.key) & ~full

    def _counted_nodes(self, rule: TopologySpread, pod: PodInfo) -> int:
        """Returns the nodes that count for a spread: those with all labels that the pod's constraints name."""
        mask = -1
        for each in pod.relations.spread:
            mask &= self._nodes_with_label(each.key)
        if rule.honors_affinity:
            mask &= self._nodes.selected_nodes(pod.constraints)
        if rule.honors_taints:
            mask &= self._nodes.tolerated_nodes(pod.constraints)
        return mask

    def _domain_count(self, key: str, counted: int) -> int:
        """Returns how many domains have a node that counts."""

        def count() -> int:
            domains = self._nodes.domains(key)
            self._pods.cost += len(domains)
            return sum(bool(mask & counted) for mask in domains.values())

        return self._cached_mask((key, counted), 0, count)

    # Masks

    def _nodes_of_domains(self, key: str, nodes: Mapping[NodeName, int]) -> int:
        """Returns all nodes in the same domain as one of these."""
        self._pods.cost += len(nodes)
        domains = self._nodes.domains(key)
        values = {self._nodes.label(node, key) for node in nodes}
        return union(domains[value] for value in values if value is not None)

    def _nodes_with_label(self, key: str) -> int:
        """Returns the nodes with a label of this key."""

        def compute() -> int:
            domains = self._nodes.domains(key)
            self._pods.cost += len(domains)
            return union(domains.values())

        return self._cached_mask(key, 0, compute)

    def _cached_mask(self, key: Hashable, version: int, compute: Callable[[], int]) -> int:
        """Returns the mask of a key; computes it again when the version of its inputs has changed."""
        known = self._masks.get(key)
        if known is None or known[0] != version:
            known = self._masks[key] = (version, compute())
        return known[1]
