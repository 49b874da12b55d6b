"""Could the scheduler put this pod on this node? Asked before a slice is promised, since the pod is pinned there.

The rules are the scheduler's own filters (NodeUnschedulable, TaintToleration, NodeAffinity, NodeResourcesFit); the
wording of a refusal follows its events, because that is what users know. Pod affinity, volumes and host ports are not
looked at: the scheduler decides them after the pod is ungated.
"""

from collections.abc import Iterable, Mapping, Sequence

from tessera.api.names import HOSTNAME_LABEL
from tessera.controller.amounts import Amounts
from tessera.controller.facts import Constraints, NodeFacts, PodFacts
from tessera.kube.resources import NodeSelectorRequirement, NodeSelectorTerm, Taint, Toleration

#: Effects that keep a new pod away; PreferNoSchedule only lowers a node's score.
_HARD = frozenset({"NoSchedule", "NoExecute"})
#: Taint that a cordoned node carries; a pod may tolerate it.
_CORDON = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")


def refusal(constraints: Constraints, node: NodeFacts) -> str:
    """Why a pod of these constraints must not be pinned to the node; empty if it may.

    Looks at the node's state and the pod's wishes, not at free amounts.
    """
    if not node.dynamic:
        return "node(s) did not offer on-demand slices (label nvidia.com/mig.config=dynamic)"
    if HOSTNAME_LABEL not in node.labels:
        return f"node(s) had no label {HOSTNAME_LABEL}, which a pod is pinned by"
    if not node.ready:
        return "node(s) were not ready"
    if node.cordoned and not _tolerated(_CORDON, constraints.tolerations):
        return "node(s) were unschedulable"
    taint = next((t for t in node.taints if t.effect in _HARD and not _tolerated(t, constraints.tolerations)), None)
    if taint is not None:
        return f"node(s) had untolerated taint {{{taint.key}: {taint.value}}}"
    if not _selected(constraints, node):
        return "node(s) didn't match Pod's node affinity/selector"
    return ""


def admitted(pod: PodFacts, node: NodeFacts) -> bool:
    """Whether a pod's selector and affinity admit a node."""
    return _selected(pod.constraints, node)


def served_by_fixed(pod: PodFacts, nodes: Iterable[NodeFacts]) -> bool:
    """Whether a pod's slices stand ready on a node with a fixed layout that its selector and affinity admit.

    Taints, cordon and what is in use are the scheduler's business, who places such a pod.
    """
    return any(node.fixed.issuperset(pod.profiles) and _selected(pod.constraints, node) for node in nodes)


def shortage(wanted: Mapping[str, int], used: Mapping[str, int], allocatable: Amounts) -> str:
    """Why these amounts do not fit beside what is used; empty if they do."""
    for resource, amount in wanted.items():
        if amount > allocatable.get(resource, 0) - used.get(resource, 0):
            return "Too many pods" if resource == "pods" else f"Insufficient {resource}"
    return ""


def _tolerated(taint: Taint, tolerations: Sequence[Toleration]) -> bool:
    return any(_tolerates(each, taint) for each in tolerations)


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator == "Exists":
        return True
    return bool(toleration.key) and toleration.value == taint.value


def _selected(constraints: Constraints, node: NodeFacts) -> bool:
    if any(node.labels.get(key) != value for key, value in constraints.selector):
        return False
    return constraints.terms is None or any(_term_holds(term, node) for term in constraints.terms)


def _term_holds(term: NodeSelectorTerm, node: NodeFacts) -> bool:
    if not term.match_expressions and not term.match_fields:
        return False
    return all(_holds(test, node.labels) for test in term.match_expressions) and all(
        _holds(test, {"metadata.name": node.name}) for test in term.match_fields
    )


def _holds(test: NodeSelectorRequirement, labels: Mapping[str, str]) -> bool:
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
        case "Gt":
            return _difference(value, test.values) > 0
        case "Lt":
            return _difference(value, test.values) < 0
        case _:
            return False


def _difference(value: str | None, bounds: Sequence[str]) -> int:
    """Label minus bound; 0, which no operator accepts, where one of them is no integer."""
    try:
        return int(value or "") - int(bounds[0])
    except (ValueError, IndexError):
        return 0
