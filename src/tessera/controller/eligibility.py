"""Could the scheduler put this pod on this node? Asked before a slice is promised, since the pod is pinned there.

The rules are the scheduler's own filters (NodeUnschedulable, TaintToleration, NodeAffinity, NodeResourcesFit); the
wording of a refusal follows its events, because that is what users know. This room has the words for one node;
:mod:`tessera.controller.node_index` answers for all of them, and :mod:`tessera.controller.judges` has the rules about
what stands on a node. Pod affinity, volumes and host ports are not looked at: the scheduler decides them after the pod
is ungated.
"""

from collections.abc import Iterator, Mapping

from tessera.api.names import HOSTNAME_LABEL
from tessera.controller.amounts import Amounts
from tessera.controller.constraints import HARD, Constraints, selects, tolerated
from tessera.controller.facts import NodeFacts
from tessera.kube.resources import Taint

#: What a pod is told of nodes that its selector or affinity leaves out.
MISMATCH = "node(s) didn't match Pod's node affinity/selector"
#: Taint that a cordoned node carries; a pod may tolerate it.
_CORDON = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")


def refusal(constraints: Constraints, node: NodeFacts) -> str:
    """Why a pod of these constraints must not be pinned to the node; empty if it may.

    Looks at the node's state and the pod's wishes, not at what stands on the node.
    """
    why = closure(constraints, node)
    return why if why or selects(constraints, node.name, node.labels) else MISMATCH


def closure(constraints: Constraints, node: NodeFacts) -> str:
    """The same without selector and affinity: why the node is closed to the pod."""
    return next(closures(constraints, node), "")


def closures(constraints: Constraints, node: NodeFacts) -> Iterator[str]:
    """Everything that closes the node to the pod; all of it has to go before the pod may be pinned there."""
    if not node.dynamic:
        yield "node(s) did not offer on-demand slices (label nvidia.com/mig.config=dynamic)"
    if HOSTNAME_LABEL not in node.labels:
        yield f"node(s) had no label {HOSTNAME_LABEL}, which a pod is pinned by"
    if not node.ready:
        yield "node(s) were not ready"
    if node.cordoned and not tolerated(_CORDON, constraints.tolerations):
        yield "node(s) were unschedulable"
    for taint in node.taints:
        if taint.effect in HARD and not tolerated(taint, constraints.tolerations):
            yield f"node(s) had untolerated taint {{{taint.key}: {taint.value}}}"


def shortage(wanted: Mapping[str, int], used: Mapping[str, int], allocatable: Amounts) -> str:
    """Why these amounts do not fit beside what is used; empty if they do."""
    return next(shortages(wanted, used, allocatable), "")


def shortages(wanted: Mapping[str, int], used: Mapping[str, int], allocatable: Amounts) -> Iterator[str]:
    """Everything of which too little is left."""
    for resource, amount in wanted.items():
        if amount > allocatable.get(resource, 0) - used.get(resource, 0):
            yield "Too many pods" if resource == "pods" else f"Insufficient {resource}"
