"""Hard rules about topology domains: pod affinity, pod anti-affinity and topology spread; for soft ones see ``scores``.

They decide as kube-scheduler's plugins InterPodAffinity, and PodTopologySpread with DoNotSchedule. Every decision
checks every pod: a simple implementation, against which faster ones can be tested.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from tessera_lab.apiserver.pods.binding_and_eviction import label_selector_matches
from tessera_lab.scheduler.filters.node_placement import NodeRejection, find_untolerated, selector_matches
from tessera_lab.scheduler.state.node_cache import CachedNode, CachedPod, NodeCache

Json = Mapping[str, Any]
#: A topology key and a node's value for it.
Domain = tuple[str, str]

NO_AFFINITY = NodeRejection("node(s) didn't match pod affinity rules", final=True)
ANTI_AFFINITY = NodeRejection("node(s) didn't match pod anti-affinity rules")
EXISTING_ANTI_AFFINITY = NodeRejection("node(s) didn't satisfy existing pods anti-affinity rules")


def affinity_filter(pod: CachedPod, cluster: NodeCache) -> Callable[[CachedNode], NodeRejection | None] | None:
    """Returns the filter of nodes for a pod; None if no rule of this pod or of another concerns it."""
    affinity_terms, anti_affinity_terms = required_terms(pod, "podAffinity"), required_terms(pod, "podAntiAffinity")
    if not affinity_terms and not anti_affinity_terms and not cluster.holders_of_anti_affinity:
        return None
    affinity_counts: Counter[Domain] = Counter()
    anti_affinity_counts: Counter[Domain] = Counter()
    if affinity_terms or anti_affinity_terms:
        for node, other in pods_with_nodes(cluster):
            if affinity_terms and all(term_matches(term, pod, other, cluster) for term in affinity_terms):
                affinity_counts.update(_domains(affinity_terms, node))
            anti_affinity_counts.update(
                _domains([term for term in anti_affinity_terms if term_matches(term, pod, other, cluster)], node)
            )
    forbidden_domains = _violates_anti_affinity(pod, cluster)
    first_of_its_kind = not affinity_counts and all(term_matches(term, pod, pod, cluster) for term in affinity_terms)

    def judge(node: CachedNode) -> NodeRejection | None:
        if any(term["topologyKey"] not in node.labels for term in affinity_terms):
            return NO_AFFINITY
        if not first_of_its_kind and any(not affinity_counts[domain] for domain in _domains(affinity_terms, node)):
            return NO_AFFINITY
        if any(anti_affinity_counts[domain] for domain in _domains(anti_affinity_terms, node)):
            return ANTI_AFFINITY
        if forbidden_domains and any(forbidden_domains[domain] for domain in node.labels.items()):
            return EXISTING_ANTI_AFFINITY
        return None

    return judge


def _violates_anti_affinity(pod: CachedPod, cluster: NodeCache) -> Counter[Domain]:
    """Returns the domains that the anti-affinity of placed pods forbids to this pod."""
    found: Counter[Domain] = Counter()
    for node, other in pods_with_nodes(cluster, cluster.holders_of_anti_affinity):
        terms = required_terms(other, "podAntiAffinity")
        found.update(_domains([term for term in terms if term_matches(term, other, pod, cluster)], node))
    return found


def required_terms(pod: CachedPod, kind: str) -> Sequence[Json]:
    """The required terms of ``podAffinity`` or ``podAntiAffinity``."""
    affinity = pod.spec.get("affinity") or {}
    return (affinity.get(kind) or {}).get("requiredDuringSchedulingIgnoredDuringExecution") or ()


def term_matches(term: Json, owner: CachedPod, other: CachedPod, cluster: NodeCache) -> bool:
    """True if a term of ``owner`` is about the pod ``other``."""
    names, selector = term.get("namespaces") or (), term.get("namespaceSelector")
    if not names and selector is None:
        names = (owner.namespace,)
    labels = cluster.namespaces.get(other.namespace, {})
    in_namespace = other.namespace in names or (selector is not None and label_selector_matches(selector, labels))
    return in_namespace and label_selector_matches(term.get("labelSelector"), other.labels)


def pods_with_nodes(
    cluster: NodeCache, only: Mapping[str, str] | None = None
) -> Iterator[tuple[CachedNode, CachedPod]]:
    """Pods and their nodes: all, or those of the given UIDs and node names."""
    if only is None:
        for node in cluster.nodes.values():
            for other in node.pods.values():
                yield node, other
        return
    for uid, name in only.items():
        found = cluster.nodes.get(name)
        if found is not None:
            yield found, found.pods[uid]


def _domains(terms: Sequence[Json], node: CachedNode) -> list[Domain]:
    keys = (term["topologyKey"] for term in terms)
    return [(key, node.labels[key]) for key in keys if key in node.labels]


SKEWED = NodeRejection("node(s) didn't match pod topology spread constraints")
NO_LABEL = NodeRejection("node(s) didn't match pod topology spread constraints (missing required label)", final=True)


class _Constraint(msgspec.Struct):
    """A constraint with the number of matching pods in each of its domains."""

    key: str
    max_skew: int
    own: int
    counts: dict[str, int]
    least: int


def spread_filter(pod: CachedPod, cluster: NodeCache) -> Callable[[CachedNode], NodeRejection | None] | None:
    """Returns the filter of nodes for a pod; None if it has no hard constraint."""
    rules = [
        rule for rule in pod.spec.get("topologySpreadConstraints") or () if rule["whenUnsatisfiable"] == "DoNotSchedule"
    ]
    if not rules:
        return None
    keys = [rule["topologyKey"] for rule in rules]
    counted = [node for node in cluster.nodes.values() if all(key in node.labels for key in keys)]
    constraints = [
        _constraint(rule, pod, [node for node in counted if _is_included(rule, pod, node)]) for rule in rules
    ]

    def judge(node: CachedNode) -> NodeRejection | None:
        for each in constraints:
            value = node.labels.get(each.key)
            if value is None:
                return NO_LABEL
            if each.counts.get(value, 0) + each.own - each.least > each.max_skew:
                return SKEWED
        return None

    return judge


def _constraint(rule: Json, pod: CachedPod, nodes: list[CachedNode]) -> _Constraint:
    selector = _selector(rule, pod)
    counts: dict[str, int] = {}
    for node in nodes:
        value = node.labels[rule["topologyKey"]]
        counts[value] = counts.get(value, 0) + sum(_counts(other, pod, selector) for other in node.pods.values())
    least = 0 if len(counts) < (rule.get("minDomains") or 1) else min(counts.values())
    own = int(label_selector_matches(selector, pod.labels))
    return _Constraint(key=rule["topologyKey"], max_skew=rule["maxSkew"], own=own, counts=counts, least=least)


def count_matching(rule: Json, pod: CachedPod, cluster: NodeCache) -> Counter[str]:
    """The number of pods that a rule is about in each of its domains."""
    selector, key = _selector(rule, pod), rule["topologyKey"]
    found: Counter[str] = Counter()
    for node in cluster.nodes.values():
        if key in node.labels and _is_included(rule, pod, node):
            found[node.labels[key]] += sum(_counts(other, pod, selector) for other in node.pods.values())
    return found


def _counts(other: CachedPod, pod: CachedPod, selector: Json | None) -> bool:
    if other.terminating or not selector:  # an empty selector counts nothing, as in kube-scheduler
        return False
    return other.namespace == pod.namespace and label_selector_matches(selector, other.labels)


def _selector(rule: Json, pod: CachedPod) -> Json | None:
    """Returns the label selector; adds the label keys if the API server has not written them into it."""
    keys = [key for key in rule.get("matchLabelKeys") or () if key in pod.labels]
    if not keys:
        return rule.get("labelSelector")
    selector = dict(rule.get("labelSelector") or {})
    tests = [{"key": key, "operator": "In", "values": [pod.labels[key]]} for key in keys]
    return {**selector, "matchExpressions": [*(selector.get("matchExpressions") or ()), *tests]}


def _is_included(rule: Json, pod: CachedPod, node: CachedNode) -> bool:
    """True if a node's domain and pods count: by default if the pod's selector and affinity admit it."""
    if rule.get("nodeAffinityPolicy") != "Ignore" and not selector_matches(pod.spec, node.labels, node.name):
        return False
    honors_taints = rule.get("nodeTaintsPolicy") == "Honor"
    return not honors_taints or find_untolerated(node.taints, pod.spec.get("tolerations") or ()) is None
