"""Decides about one pod: the node to bind it to, or the reasons why there is none, with kube-scheduler's texts.

The filters run in kube-scheduler's order, and a node counts under the first filter that refuses it; only the resource
filter may give several reasons. Among the nodes that remain the best score wins. If no node can take
the pod, :mod:`preemption` looks for less important pods to end.

Scores follow kube-scheduler's plugins, their weights and their rules of scaling. TaintToleration counts three times;
NodeAffinity, PodTopologySpread, InterPodAffinity and the preferred alternatives of claims (DynamicResources) twice; the
least allocated CPU and memory, their balance, and the images that a node has once. Equal nodes go by fewer pods, then
by name, so that a run can be repeated. The default spreading of bare pods by a Service's selector has no part: the pods
of one ReplicaSet or StatefulSet are spread, which is what the default selector comes to for them.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import msgspec

from tessera_lab.scheduler.filters.claims import ClaimPlan, claim_filter
from tessera_lab.scheduler.filters.node_placement import (
    NodeRejection,
    find_untolerated,
    pinned_names,
    preferred_weight,
    selector_matches,
)
from tessera_lab.scheduler.filters.topology import (
    Domain,
    affinity_filter,
    count_matching,
    pods_with_nodes,
    spread_filter,
    term_matches,
)
from tessera_lab.scheduler.filters.volumes import VolumePlan, volume_filter
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


#: The taint that kube-controller-manager and kubectl cordon put beside ``spec.unschedulable``.
UNSCHEDULABLE_TAINT = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}

NOT_MATCHED = NodeRejection("node(s) didn't match Pod's node affinity/selector", final=True)
NOT_PINNED = NodeRejection("node(s) didn't satisfy plugin(s) [NodeAffinity]", final=True)
CORDONED = NodeRejection("node(s) were unschedulable", final=True)
NO_PORTS = NodeRejection("node(s) didn't have free ports for the requested pod ports")


class NodeChoice(msgspec.Struct, frozen=True):
    """Binds the pod to ``node``, after the writes to its claims of volumes and of devices."""

    node: str
    volumes: VolumePlan = VolumePlan()
    claims: ClaimPlan = ClaimPlan()


class Unschedulable(msgspec.Struct, frozen=True):
    """No node can take the pod now.

    Attributes:
        reasons: the text of the condition and of the event, without the part about preemption.
        curable: nodes whose reason could go away if other pods ended.
        total: number of nodes.
        elsewhere: claims whose allocation refused a node that could have taken the pod.
    """

    reasons: str
    curable: tuple[str, ...] = ()
    total: int = 0
    elsewhere: tuple[str, ...] = ()


class PodFilters:
    """The rules of one decision, compiled for one pod."""

    def __init__(self, pod: CachedPod, cluster: NodeCache) -> None:
        self._pod = pod
        self._volumes = volume_filter(pod, cluster)
        volumes = self._volumes.judge if self._volumes is not None else None
        self._claims = claim_filter(pod, cluster.claims)
        claims = self._claims.judge if self._claims is not None else None
        self._more: list[Callable[[CachedNode], NodeRejection | None]] = [
            each
            for each in (volumes, spread_filter(pod, cluster), affinity_filter(pod, cluster), claims)
            if each is not None
        ]
        self._nominated = cluster.nominated

    @property
    def hopeless(self) -> str:
        """Returns why no node can take the pod; empty if some may."""
        found = self._volumes.hopeless if self._volumes is not None else ""
        return found or (self._claims.hopeless if self._claims is not None else "")

    @property
    def elsewhere(self) -> tuple[str, ...]:
        """Claims of devices that kept the pod from a node which every other filter admitted."""
        return tuple(sorted(self._claims.elsewhere)) if self._claims is not None else ()

    def choose(self, node: CachedNode) -> NodeChoice:
        """The decision for a node that can take the pod, with the plans for its claims."""
        volumes = self._volumes.plan(node) if self._volumes is not None else VolumePlan()
        return NodeChoice(node.name, volumes, self._claims.plan(node) if self._claims is not None else ClaimPlan())

    def count_preference(self, node: CachedNode) -> int:
        """How well a node that can take the pod serves the preferred alternatives of its claims."""
        return self._claims.count_preference(node) if self._claims is not None else 0

    def rejections(self, node: CachedNode) -> list[NodeRejection]:
        """Returns why the node cannot take the pod; empty if it can."""
        delegated = self._claims.delegated(node) if self._claims is not None else frozenset()
        found = collect_rejections(self._pod, node, self._nominated.get(node.name, {}).values(), delegated)
        if not found:
            found = list(islice((each for check in self._more if (each := check(node)) is not None), 1))
        return found


def decide(pod: CachedPod, cluster: NodeCache) -> NodeChoice | Unschedulable:
    """Chooses a node for one pod, or returns why none can take it."""
    total = len(cluster.nodes)
    if not total:
        return Unschedulable("no nodes available to schedule pods")
    filters = PodFilters(pod, cluster)
    if filters.hopeless:
        return Unschedulable(f"0/{total} nodes are available: {filters.hopeless}.", (), total)
    nodes, skipped = _candidates(pod.spec, cluster)
    fitting: list[CachedNode] = []
    curable: list[str] = []
    counts: dict[str, int] = {}
    examined = 0
    for node in nodes:
        examined += 1
        found = filters.rejections(node)
        for each in found:
            counts[each.reason] = counts.get(each.reason, 0) + 1
        if not found:
            fitting.append(node)
        elif not any(each.final for each in found):
            curable.append(node.name)
    if fitting:
        best = choose_node(pod, fitting, cluster, [filters.count_preference(each) for each in fitting])
        return filters.choose(best)
    if total > examined:
        counts[skipped.reason] = counts.get(skipped.reason, 0) + total - examined
    return Unschedulable(_message(total, counts), tuple(curable), total, filters.elsewhere)


def collect_rejections(
    pod: CachedPod,
    node: CachedNode,
    nominated: Iterable[CachedPod] = (),
    delegated: frozenset[str] = frozenset(),
) -> list[NodeRejection]:
    """Returns why the node cannot take the pod, by the filters that need only the node; empty if it can.

    ``nominated`` are pods for which preemption made room on the node: those of at least the same priority count as
    placed. ``delegated`` are resources that the pod gets from elsewhere.
    """
    spec = pod.spec
    if node.unschedulable and find_untolerated([UNSCHEDULABLE_TAINT], spec.get("tolerations") or ()) is not None:
        return [CORDONED]
    if node.taints:
        taint = find_untolerated(node.taints, spec.get("tolerations") or ())
        if taint is not None:
            text = f"node(s) had untolerated taint {{{taint.get('key', '')}: {taint.get('value') or ''}}}"
            return [NodeRejection(text, final=True)]
    if not selector_matches(spec, node.labels, node.name):
        return [NOT_MATCHED]
    coming = [each for each in nominated if each.uid != pod.uid and each.priority >= pod.priority]
    for each in coming:
        node.hold(each)
    try:
        if node.ports_in_use(pod.ports):
            return [NO_PORTS]
        lacking = node.lacking_resources(pod.requests)
        return [_missing_resources(name, value, node) for name, value in lacking if name not in delegated]
    finally:
        for each in coming:
            node.free(each.uid)


def _missing_resources(name: str, value: int, node: CachedNode) -> NodeRejection:
    text = "Too many pods" if name == "pods" else f"Insufficient {name}"
    return NodeRejection(text, final=value > node.allocatable.get(name, 0))


def _candidates(spec: Json, cluster: NodeCache) -> tuple[Iterable[CachedNode], NodeRejection]:
    """Returns the nodes to check, and the reason that counts for all the others."""
    names = pinned_names(spec)
    if names is not None:
        return [cluster.nodes[name] for name in sorted(names) if name in cluster.nodes], NOT_PINNED
    hostname = (spec.get("nodeSelector") or {}).get(HOSTNAME)
    if hostname is not None:
        return cluster.with_hostname(hostname), NOT_MATCHED
    return cluster.nodes.values(), NOT_MATCHED


def _message(total: int, counts: Mapping[str, int]) -> str:
    reasons = ", ".join(sorted(f"{count} {reason}" for reason, count in counts.items()))
    return f"0/{total} nodes are available: {reasons}."
