"""Topology spread constraints with DoNotSchedule, as kube-scheduler's plugin PodTopologySpread decides them."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from tessera_lab.apiserver.pods.binding_and_eviction import label_selector_matches
from tessera_lab.scheduler.filters.node_placement import Refusal, selector_matches, untolerated
from tessera_lab.scheduler.state.node_cache import CachedNode, NodeCache, PodInfo

Json = Mapping[str, Any]

SKEWED = Refusal("node(s) didn't match pod topology spread constraints")
NO_LABEL = Refusal("node(s) didn't match pod topology spread constraints (missing required label)", final=True)


class _Constraint(msgspec.Struct):
    """A constraint with the number of matching pods in each of its domains."""

    key: str
    max_skew: int
    own: int
    counts: dict[str, int]
    least: int


def spread_filter(pod: PodInfo, cluster: NodeCache) -> Callable[[CachedNode], Refusal | None] | None:
    """Returns the filter of nodes for a pod; None if it has no hard constraint."""
    rules = [
        rule for rule in pod.spec.get("topologySpreadConstraints") or () if rule["whenUnsatisfiable"] == "DoNotSchedule"
    ]
    if not rules:
        return None
    keys = [rule["topologyKey"] for rule in rules]
    counted = [node for node in cluster.nodes.values() if all(key in node.labels for key in keys)]
    constraints = [_constraint(rule, pod, [node for node in counted if _included(rule, pod, node)]) for rule in rules]

    def judge(node: CachedNode) -> Refusal | None:
        for each in constraints:
            value = node.labels.get(each.key)
            if value is None:
                return NO_LABEL
            if each.counts.get(value, 0) + each.own - each.least > each.max_skew:
                return SKEWED
        return None

    return judge


def _constraint(rule: Json, pod: PodInfo, nodes: list[CachedNode]) -> _Constraint:
    selector = _selector(rule, pod)
    counts: dict[str, int] = {}
    for node in nodes:
        value = node.labels[rule["topologyKey"]]
        counts[value] = counts.get(value, 0) + sum(_counts(other, pod, selector) for other in node.pods.values())
    least = 0 if len(counts) < (rule.get("minDomains") or 1) else min(counts.values())
    own = int(label_selector_matches(selector, pod.labels))
    return _Constraint(key=rule["topologyKey"], max_skew=rule["maxSkew"], own=own, counts=counts, least=least)


def _counts(other: PodInfo, pod: PodInfo, selector: Json | None) -> bool:
    if other.terminating or not selector:  # an empty selector counts nothing, as in kube-scheduler
        return False
    return other.namespace == pod.namespace and label_selector_matches(selector, other.labels)


def _selector(rule: Json, pod: PodInfo) -> Json | None:
    """Returns the label selector; adds the label keys if the API server has not written them into it."""
    keys = [key for key in rule.get("matchLabelKeys") or () if key in pod.labels]
    if not keys:
        return rule.get("labelSelector")
    selector = dict(rule.get("labelSelector") or {})
    tests = [{"key": key, "operator": "In", "values": [pod.labels[key]]} for key in keys]
    return {**selector, "matchExpressions": [*(selector.get("matchExpressions") or ()), *tests]}


def _included(rule: Json, pod: PodInfo, node: CachedNode) -> bool:
    """True if a node's domain and pods count: by default if the pod's selector and affinity admit it."""
    if rule.get("nodeAffinityPolicy") != "Ignore" and not selector_matches(pod.spec, node.labels, node.name):
        return False
    honors_taints = rule.get("nodeTaintsPolicy") == "Honor"
    return not honors_taints or untolerated(node.taints, pod.spec.get("tolerations") or ()) is None
