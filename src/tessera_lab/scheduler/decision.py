"""Decides about one pod: the node to bind it to, or the reasons why there is none, with kube-scheduler's texts.

The filters run in kube-scheduler's order, and a node counts under the first filter that refuses it; only the resource
filter may give several reasons. Among the nodes that remain the best score wins (:mod:`scores`). If no node can take
the pod, :mod:`preemption` looks for less important pods to end.
"""

from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any

import msgspec

from tessera_lab.scheduler.filters.claims import ClaimPlan, claim_filter
from tessera_lab.scheduler.filters.node_placement import (
    NodeRejection,
    find_untolerated,
    pinned_names,
    selector_matches,
)
from tessera_lab.scheduler.filters.topology import affinity_filter, spread_filter
from tessera_lab.scheduler.filters.volumes import VolumePlan, volume_filter
from tessera_lab.scheduler.scores import choose_node
from tessera_lab.scheduler.state.node_cache import HOSTNAME, CachedNode, CachedPod, NodeCache

Json = Mapping[str, Any]

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
