"""One pod, one answer: the node to bind it to, or why there is none, in kube-scheduler's words.

The filters run in kube-scheduler's order and a node is counted under the first that refuses it; only the resource
filter may give several reasons. Among the nodes that remain the best score wins: preferred node affinity, then
taints of effect PreferNoSchedule, then the least allocated CPU and memory, then the name, so that a run can be
repeated. Preemption, inter-pod affinity, topology spread and volumes are not implemented; a pod that *requires*
one of the latter is not placed and its message says so.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from tessera.lab.scheduler.affinity import pinned_names, preferred_weight, selector_matches
from tessera.lab.scheduler.cluster import HOSTNAME, Cluster, Node, PodNeeds
from tessera.lab.scheduler.taints import untolerated

Json = Mapping[str, Any]

#: The taint that kube-controller-manager and kubectl cordon put beside ``spec.unschedulable``.
UNSCHEDULABLE_TAINT = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}

NOT_MATCHED = "node(s) didn't match Pod's node affinity/selector"
NOT_PINNED = "node(s) didn't satisfy plugin(s) [NodeAffinity]"


class Placed(msgspec.Struct, frozen=True):
    """The pod goes to ``node``."""

    node: str


class Unschedulable(msgspec.Struct, frozen=True):
    """No node can take the pod now; ``message`` is the text of the condition and of the event."""

    message: str


def decide(pod: PodNeeds, cluster: Cluster) -> Placed | Unschedulable:
    """Chooses a node for one pod, or says why none can take it."""
    if not cluster.nodes:
        return Unschedulable("no nodes available to schedule pods")
    missing = _not_implemented(pod.spec)
    if missing:
        return Unschedulable(f"0/{len(cluster.nodes)} nodes are available: {missing}")
    nodes, skipped = _candidates(pod.spec, cluster)
    fitting: list[Node] = []
    counts: dict[str, int] = {}
    seen = 0
    for node in nodes:
        seen += 1
        reasons = refusals(pod, node)
        for reason in reasons:
            counts[reason] = counts.get(reason, 0) + 1
        if not reasons:
            fitting.append(node)
    if fitting:
        return Placed(max(fitting, key=lambda node: _score(pod, node)).name if len(fitting) > 1 else fitting[0].name)
    if len(cluster.nodes) > seen:
        counts[skipped] = counts.get(skipped, 0) + len(cluster.nodes) - seen
    return Unschedulable(_message(len(cluster.nodes), counts))


def refusals(pod: PodNeeds, node: Node) -> list[str]:
    """Why the node cannot take the pod; empty when it can."""
    spec = pod.spec
    if node.unschedulable and untolerated([UNSCHEDULABLE_TAINT], spec.get("tolerations") or ()) is not None:
        return ["node(s) were unschedulable"]
    if node.taints:
        taint = untolerated(node.taints, spec.get("tolerations") or ())
        if taint is not None:
            return [f"node(s) had untolerated taint {{{taint.get('key', '')}: {taint.get('value') or ''}}}"]
    if not selector_matches(spec, node.labels, node.name):
        return [NOT_MATCHED]
    if node.ports_taken(pod.ports):
        return ["node(s) didn't have free ports for the requested pod ports"]
    return ["Too many pods" if name == "pods" else f"Insufficient {name}" for name in node.lacking(pod.requests)]


def _candidates(spec: Json, cluster: Cluster) -> tuple[Iterable[Node], str]:
    """The nodes worth looking at, and the reason that counts for all the others."""
    names = pinned_names(spec)
    if names is not None:
        return [cluster.nodes[name] for name in sorted(names) if name in cluster.nodes], NOT_PINNED
    hostname = (spec.get("nodeSelector") or {}).get(HOSTNAME)
    if hostname is not None:
        return cluster.with_hostname(hostname), NOT_MATCHED
    return cluster.nodes.values(), NOT_MATCHED


def _score(pod: PodNeeds, node: Node) -> tuple[int, int, float, str]:
    spec = pod.spec
    disliked = node.taints and untolerated(node.taints, spec.get("tolerations") or (), ("PreferNoSchedule",))
    free = 0.0
    for name in ("cpu", "memory"):
        total = node.allocatable.get(name, 0)
        if total:
            free += (total - node.used.get(name, 0) - pod.requests.get(name, 0)) / total
    # Pods without requests would all go to one node: the number of pods breaks the tie as requests would.
    free -= node.used.get("pods", 0) / max(1, node.allocatable.get("pods", 1))
    return preferred_weight(spec, node.labels, node.name), 0 if disliked else 1, free, _descending(node.name)


def _descending(name: str) -> str:
    """A key under which the alphabetically first name is the greatest."""
    return "".join(chr(0x10FFFF - ord(letter)) for letter in name)


def _not_implemented(spec: Json) -> str | None:
    affinity = spec.get("affinity") or {}
    for field in ("podAffinity", "podAntiAffinity"):
        if (affinity.get(field) or {}).get("requiredDuringSchedulingIgnoredDuringExecution"):
            return f"the lab's scheduler does not implement required {field}; remove it or make it preferred."
    if any(rule.get("whenUnsatisfiable") == "DoNotSchedule" for rule in spec.get("topologySpreadConstraints") or ()):
        return "the lab's scheduler does not implement topologySpreadConstraints with DoNotSchedule."
    if any("persistentVolumeClaim" in volume for volume in spec.get("volumes") or ()):
        return "the lab's scheduler does not implement persistent volume claims."
    return None


def _message(total: int, counts: Mapping[str, int]) -> str:
    reasons = ", ".join(sorted(f"{count} {reason}" for reason, count in counts.items()))
    return f"0/{total} nodes are available: {reasons}. preemption: not implemented by the lab's scheduler."
