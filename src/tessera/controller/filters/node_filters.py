"""Could the scheduler put this pod on this node? Asked before a slice is promised, since the pod is pinned there.

The rules are the scheduler's own filters (NodeUnschedulable, TaintToleration, NodeAffinity, NodeResourcesFit); the
wording of a refusal follows the scheduler's events, because users know that. This module judges one node;
:mod:`tessera.controller.cluster.node_index` answers the same for all nodes at once.
"""

from collections.abc import Iterator, Mapping

from tessera.controller.objects.node_constraints import BLOCKING_EFFECTS, NodeConstraints, admits_node, is_tolerated
from tessera.controller.objects.node_info import NodeInfo
from tessera.controller.objects.resource_amounts import offered_by_agent
from tessera.kube.resources import Taint

#: The reason that a pod reads about nodes that its selector or affinity excludes.
MISMATCH = "node(s) didn't match Pod's node affinity/selector"
#: Taint that a cordoned node carries; a pod may tolerate it.
_CORDON = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")


def refusal(constraints: NodeConstraints, node: NodeInfo) -> str:
    """Why a pod of these constraints must not be pinned to the node; empty if it may.

    Looks at the node's state and the pod's wishes, not at what stands on the node.
    """
    why = first_closed_because(constraints, node)
    return why if why or admits_node(constraints, node.name, node.labels) else MISMATCH


def first_closed_because(constraints: NodeConstraints, node: NodeInfo) -> str:
    """The same without selector and affinity: why the node is closed to the pod."""
    return next(closed_because(constraints, node), "")


def closed_because(constraints: NodeConstraints, node: NodeInfo) -> Iterator[str]:
    """Everything that closes the node to the pod; all of it has to go before the pod may be pinned there."""
    yield from node.closed_because()
    if node.cordoned and not is_tolerated(_CORDON, constraints.tolerations):
        yield "node(s) were unschedulable"
    for taint in node.taints:
        if taint.effect in BLOCKING_EFFECTS and not is_tolerated(taint, constraints.tolerations):
            yield f"node(s) had untolerated taint {{{taint.key}: {taint.value}}}"


def first_shortage(wanted: Mapping[str, int], used: Mapping[str, int], node: NodeInfo) -> str:
    """Why these amounts do not fit on the node beside what is used; empty if they do. See :func:`device_shortages`."""
    return next(shortages(wanted, used, node), "")


def shortages(wanted: Mapping[str, int], used: Mapping[str, int], node: NodeInfo) -> Iterator[str]:
    """Everything of which too little is left, besides what a node has from its agent."""
    return _short({name: amount for name, amount in wanted.items() if not offered_by_agent(name)}, used, node)


def device_shortages(wanted: Mapping[str, int], used: Mapping[str, int], node: NodeInfo) -> Iterator[str]:
    """The same for what a node has from its agent: devices of MIG profiles, and the memory quota."""
    return _short({name: amount for name, amount in wanted.items() if offered_by_agent(name)}, used, node)


def _short(wanted: Mapping[str, int], used: Mapping[str, int], node: NodeInfo) -> Iterator[str]:
    for resource, amount in wanted.items():
        most = node.allocatable_amount(resource)
        if most is not None and amount > most - used.get(resource, 0):
            yield "Too many pods" if resource == "pods" else f"Insufficient {resource}"
