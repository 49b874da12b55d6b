"""Judges if the scheduler could put a pod on a node, before the controller promises a slice and pins the pod there.

The rules are the scheduler's own filters (NodeUnschedulable, TaintToleration, NodeAffinity, NodeResourcesFit). A
refusal has the words of the scheduler's events, because users know them. This module judges one node;
:mod:`tessera.controller.cluster.node_index` answers the same for all nodes at once.
"""

from collections.abc import Iterator, Mapping

from tessera.controller.objects.node_constraints import BLOCKING_EFFECTS, NodeConstraints, admits_node, is_tolerated
from tessera.controller.objects.node_info import NodeInfo
from tessera.controller.objects.resource_amounts import offered_by_agent
from tessera.kube.resources import Taint

#: The reason shown to a pod about nodes that its selector or affinity excludes.
MISMATCH = "node(s) didn't match Pod's node affinity/selector"
#: Taint that a cordoned node carries; a pod may tolerate it.
_CORDON = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")


def refusal(constraints: NodeConstraints, node: NodeInfo) -> str:
    """Returns why a pod with these constraints must not be pinned to the node; empty if it may.

    Looks at the node's state and the pod's constraints, not at the pods on the node.
    """
    why = first_closed_because(constraints, node)
    return why if why or admits_node(constraints, node.name, node.labels) else MISMATCH


def first_closed_because(constraints: NodeConstraints, node: NodeInfo) -> str:
    """Returns the same without selector and affinity: why the node is closed to the pod."""
    return next(closed_because(constraints, node), "")


def closed_because(constraints: NodeConstraints, node: NodeInfo) -> Iterator[str]:
    """Yields every reason that closes the node to the pod; all must go before the pod may be pinned there."""
    yield from node.closed_because()
    if node.cordoned and not is_tolerated(_CORDON, constraints.tolerations):
        yield "node(s) were unschedulable"
    for taint in node.taints:
        if taint.effect in BLOCKING_EFFECTS and not is_tolerated(taint, constraints.tolerations):
            yield f"node(s) had untolerated taint {{{taint.key}: {taint.value}}}"


def first_shortage(wanted: Mapping[str, int], used: Mapping[str, int], node: NodeInfo) -> str:
    """Returns why these amounts do not fit beside the used ones; empty if they do. See :func:`device_shortages`."""
    return next(shortages(wanted, used, node), "")


def shortages(wanted: Mapping[str, int], used: Mapping[str, int], node: NodeInfo) -> Iterator[str]:
    """Yields every shortage except of resources that the node's agent provides."""
    return _short({name: amount for name, amount in wanted.items() if not offered_by_agent(name)}, used, node)


def device_shortages(wanted: Mapping[str, int], used: Mapping[str, int], node: NodeInfo) -> Iterator[str]:
    """Yields the same for resources of the node's agent: devices of MIG profiles, and the memory quota."""
    return _short({name: amount for name, amount in wanted.items() if offered_by_agent(name)}, used, node)


def _short(wanted: Mapping[str, int], used: Mapping[str, int], node: NodeInfo) -> Iterator[str]:
    for resource, amount in wanted.items():
        most = node.allocatable_amount(resource)
        if most is not None and amount > most - used.get(resource, 0):
            yield "Too many pods" if resource == "pods" else f"Insufficient {resource}"
