"""Required pod affinity and anti-affinity, as kube-scheduler's plugin InterPodAffinity decides them.

Every decision checks every pod: a simple implementation, against which quicker ones can be tested.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tessera_lab.apiserver.pods.binding_and_eviction import label_selector_matches
from tessera_lab.scheduler.filters.node_placement import Refusal
from tessera_lab.scheduler.state.node_cache import CachedNode, NodeCache, PodInfo

Json = Mapping[str, Any]
#: A topology key and a node's value for it.
Domain = tuple[str, str]

NO_AFFINITY = Refusal("node(s) didn't match pod affinity rules", final=True)
ANTI_AFFINITY = Refusal("node(s) didn't match pod anti-affinity rules")
EXISTING_ANTI_AFFINITY = Refusal("node(s) didn't satisfy existing pods anti-affinity rules")


def affinity_filter(pod: PodInfo, cluster: NodeCache) -> Callable[[CachedNode], Refusal | None] | None:
    """Returns the filter of nodes for a pod; None if no rule of this pod or of another concerns it."""
    near, apart = required_terms(pod, "podAffinity"), required_terms(pod, "podAntiAffinity")
    if not near and not apart and not cluster.holders_of_anti_affinity:
        return None
    near_counts: Counter[Domain] = Counter()
    apart_counts: Counter[Domain] = Counter()
    if near or apart:
        for node, other in _matching_pods(cluster):
            if near and all(term_matches(term, pod, other, cluster) for term in near):
                near_counts.update(_domains(near, node))
            apart_counts.update(_domains([term for term in apart if term_matches(term, pod, other, cluster)], node))
    against = _violates_anti_affinity(pod, cluster)
    first_of_its_kind = not near_counts and all(term_matches(term, pod, pod, cluster) for term in near)

    def judge(node: CachedNode) -> Refusal | None:
        if any(term["topologyKey"] not in node.labels for term in near):
            return NO_AFFINITY
        if not first_of_its_kind and any(not near_counts[domain] for domain in _domains(near, node)):
            return NO_AFFINITY
        if any(apart_counts[domain] for domain in _domains(apart, node)):
            return ANTI_AFFINITY
        if against and any(against[domain] for domain in node.labels.items()):
            return EXISTING_ANTI_AFFINITY
        return None

    return judge


def _violates_anti_affinity(pod: PodInfo, cluster: NodeCache) -> Counter[Domain]:
    """Returns the domains that the anti-affinity of placed pods forbids to this pod."""
    found: Counter[Domain] = Counter()
    for node, other in _matching_pods(cluster, cluster.holders_of_anti_affinity):
        terms = required_terms(other, "podAntiAffinity")
        found.update(_domains([term for term in terms if term_matches(term, other, pod, cluster)], node))
    return found


def required_terms(pod: PodInfo, kind: str) -> Sequence[Json]:
    """The required terms of ``podAffinity`` or ``podAntiAffinity``."""
    affinity = pod.spec.get("affinity") or {}
    return (affinity.get(kind) or {}).get("requiredDuringSchedulingIgnoredDuringExecution") or ()


def term_matches(term: Json, owner: PodInfo, other: PodInfo, cluster: NodeCache) -> bool:
    """True if a term of ``owner`` is about the pod ``other``."""
    names, selector = term.get("namespaces") or (), term.get("namespaceSelector")
    if not names and selector is None:
        names = (owner.namespace,)
    labels = cluster.namespaces.get(other.namespace, {})
    in_namespace = other.namespace in names or (selector is not None and label_selector_matches(selector, labels))
    return in_namespace and label_selector_matches(term.get("labelSelector"), other.labels)


def _matching_pods(cluster: NodeCache, only: Mapping[str, str] | None = None) -> Iterator[tuple[CachedNode, PodInfo]]:
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
