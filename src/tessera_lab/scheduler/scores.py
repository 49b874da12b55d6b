"""Scores of the nodes that can take a pod, by kube-scheduler's plugins, their weights and their rules of scaling.

TaintToleration counts three times; NodeAffinity, PodTopologySpread, InterPodAffinity and the preferred alternatives of
claims (DynamicResources) twice; the least allocated CPU and memory, their balance, and the images that a node has once.
Equal nodes go by fewer pods, then by name, so that a run can be repeated. The default spreading of bare pods by a
Service's selector has no part: the pods of one ReplicaSet or StatefulSet are spread, which is what the default selector
comes to for them.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tessera_lab.scheduler.filters.node_placement import find_untolerated, preferred_weight
from tessera_lab.scheduler.filters.topology import Domain, count_matching, pods_with_nodes, term_matches
from tessera_lab.scheduler.state.node_cache import HOSTNAME, CachedNode, CachedPod, NodeCache

Json = Mapping[str, Any]
#: Of each node, in the order of the nodes.
Scores = list[float]

_BEST = 100.0
_TAINTS, _OTHERS = 3.0, 2.0
_RESOURCES = ("cpu", "memory")
#: Bytes of the images of a pod below which they do not count, and of one container beyond which they count no more
#: (kube-scheduler, plugin ImageLocality).
_LEAST_IMAGE, _LARGEST_IMAGE = 23 * 2**20, 1000 * 2**20
#: ``defaultConstraints`` of kube-scheduler's ``System`` spreading: the topology's key and the allowed skew.
_DEFAULT_SPREAD = ((HOSTNAME, 3), ("topology.kubernetes.io/zone", 5))
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def choose_node(
    pod: CachedPod, nodes: Sequence[CachedNode], cluster: NodeCache, alternatives: Sequence[int] = ()
) -> CachedNode:
    """Returns the best of the nodes, of which there is one at least.

    Args:
        pod: the pod.
        nodes: the nodes.
        cluster: the cache.
        alternatives: for each node how well it serves the preferred alternatives of the pod's claims; empty without.
    """
    if len(nodes) == 1:
        return nodes[0]
    totals: Scores = [
        _least_allocated(pod, node) + _balance(pod, node) + _locality(pod, node, cluster) for node in nodes
    ]
    rules = [*_soft_rules(pod, nodes, cluster)]
    if any(alternatives):
        rules.append((_OTHERS, _scale([float(each) for each in alternatives])))
    for weight, scores in rules:
        totals = [total + weight * score for total, score in zip(totals, scores, strict=True)]
    return min(
        zip(totals, nodes, strict=True), key=lambda each: (-round(each[0], 9), _fullness(each[1]), each[1].name)
    )[1]


def _soft_rules(pod: CachedPod, nodes: Sequence[CachedNode], cluster: NodeCache) -> Iterator[tuple[float, Scores]]:
    """Weights and scores of the rules that say anything about the pod on these nodes."""
    if any(node.taints for node in nodes):
        tolerations = pod.spec.get("tolerations") or ()
        disliked = [_disliked(node, tolerations) for node in nodes]
        yield _TAINTS, [_BEST - each for each in _scale(disliked)]
    if pod.spec.get("affinity"):
        yield _OTHERS, _scale([float(preferred_weight(pod.spec, node.labels, node.name)) for node in nodes])
    if (spread := _spread(pod, nodes, cluster)) is not None:
        yield _OTHERS, spread
    if (weights := _pod_preferences(pod, cluster)) is not None:
        yield _OTHERS, _between([sum(float(weights[domain]) for domain in node.labels.items()) for node in nodes])


def _least_allocated(pod: CachedPod, node: CachedNode) -> int:
    """NodeResourcesFit: the part of CPU and memory that stays free, the mean of both, in whole hundredths."""
    shares = []
    for name in _RESOURCES:
        if total := node.allocatable.get(name, 0):
            free = total - node.compared.get(name, 0) - pod.compared.get(name, 0)
            shares.append(max(0, free) * int(_BEST) // total)
    return sum(shares) // len(shares) if shares else 0


def _balance(pod: CachedPod, node: CachedNode) -> int:
    """NodeResourcesBalancedAllocation: how alike the used parts of CPU and memory are; 0 for a pod without requests."""
    if not any(pod.requests.get(name) for name in _RESOURCES):
        return 0
    parts = [
        min(1.0, (node.used.get(name, 0) + pod.requests.get(name, 0)) / total)
        for name in _RESOURCES
        if (total := node.allocatable.get(name, 0))
    ]
    deviation = abs(parts[0] - parts[1]) / 2 if len(parts) == len(_RESOURCES) else 0.0
    return int((1 - deviation) * _BEST)


def _locality(pod: CachedPod, node: CachedNode, cluster: NodeCache) -> int:
    """ImageLocality: the size of the pod's images that the node has, each by the part of the nodes that have it."""
    if not node.images:
        return 0
    containers = [*(pod.spec.get("initContainers") or ()), *(pod.spec.get("containers") or ())]
    names = [_with_tag(str(each.get("image") or "")) for each in containers]
    there = sum(
        int(node.images[name] * cluster.image_nodes[name] / len(cluster.nodes)) for name in names if name in node.images
    )
    least, most = _LEAST_IMAGE, _LARGEST_IMAGE * len(containers)
    return int(_BEST) * (min(most, max(least, there)) - least) // (most - least)


def _with_tag(image: str) -> str:
    return image if image.rfind(":") > image.rfind("/") else f"{image}:latest"


def _fullness(node: CachedNode) -> float:
    return node.used.get("pods", 0) / max(1, node.allocatable.get("pods", 1))


def _disliked(node: CachedNode, tolerations: Sequence[Json]) -> float:
    return float(sum(find_untolerated([each], tolerations, ("PreferNoSchedule",)) is not None for each in node.taints))


def _scale(values: Scores) -> Scores:
    """Scales so that the greatest value is 100."""
    greatest = max(values)
    return [_BEST * each / greatest if greatest else 0.0 for each in values]


def _between(values: Scores) -> Scores:
    """Scales so that the least value is 0 and the greatest 100."""
    least, greatest = min(values), max(values)
    return [_BEST * (each - least) / (greatest - least) if greatest > least else 0.0 for each in values]


# Spreading


def _spread(pod: CachedPod, nodes: Sequence[CachedNode], cluster: NodeCache) -> Scores | None:
    """More for domains with fewer of the pod's like; a node without the label of a rule of the pod's own gets 0."""
    rules = pod.spec.get("topologySpreadConstraints") or ()
    soft = [rule for rule in rules if rule["whenUnsatisfiable"] == "ScheduleAnyway"]
    if soft:
        counts = [(rule["topologyKey"], rule["maxSkew"], count_matching(rule, pod, cluster)) for rule in soft]
    elif not rules and (replicas := cluster.replicas.get(pod.owner)):
        counts = [(key, skew, _per_domain(key, replicas, cluster)) for key, skew in _DEFAULT_SPREAD]
    else:
        return None
    ignored = {node.name for node in nodes if any(rule["topologyKey"] not in node.labels for rule in soft)}
    sizes = {key: len({node.labels[key] for node in nodes if key in node.labels}) for key, _, _ in counts}
    costs = [
        sum(
            found[node.labels[key]] * math.log(sizes[key] + 2) + skew - 1
            for key, skew, found in counts
            if key in node.labels
        )
        for node in nodes
    ]
    judged = [round(cost) for cost, node in zip(costs, nodes, strict=True) if node.name not in ignored] or [0]
    least, greatest = min(judged), max(judged)
    return [
        0.0 if node.name in ignored else _BEST * (greatest + least - round(cost)) / greatest if greatest else _BEST
        for cost, node in zip(costs, nodes, strict=True)
    ]


def _per_domain(key: str, replicas: Mapping[str, int], cluster: NodeCache) -> Counter[str]:
    found: Counter[str] = Counter()
    for name, number in replicas.items():
        node = cluster.nodes.get(name)
        if node is not None and key in node.labels:
            found[node.labels[key]] += number
    return found


# Preferred affinity between pods


def _pod_preferences(pod: CachedPod, cluster: NodeCache) -> Counter[Domain] | None:
    """Weights of domains, by the preferences of the pod about others, and of placed pods about this one."""
    terms = list(_preferred_terms(pod))
    if not terms and not cluster.holders_of_preferences:
        return None
    weights: Counter[Domain] = Counter()
    for node, other in pods_with_nodes(cluster) if terms else ():
        _add(weights, node, [each for each in terms if term_matches(each[1], pod, other, cluster)])
    for node, other in pods_with_nodes(cluster, cluster.holders_of_preferences):
        theirs = _preferred_terms(other)
        _add(weights, node, [each for each in theirs if term_matches(each[1], other, pod, cluster)])
    return weights


def _add(weights: Counter[Domain], node: CachedNode, terms: Sequence[tuple[int, Json]]) -> None:
    for weight, term in terms:
        key = term["topologyKey"]
        if key in node.labels:
            weights[key, node.labels[key]] += weight


def _preferred_terms(pod: CachedPod) -> Iterator[tuple[int, Json]]:
    """The pod's preferred terms with their weights, those of anti-affinity below zero."""
    affinity = pod.spec.get("affinity") or {}
    for kind, sign in (("podAffinity", 1), ("podAntiAffinity", -1)):
        for each in (affinity.get(kind) or {}).get(_PREFERRED) or ():
            yield sign * each["weight"], each["podAffinityTerm"]
