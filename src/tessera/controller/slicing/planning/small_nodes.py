"""Says of a pod that it is larger than every node that may take it, with the amounts of the largest one."""

from collections.abc import Hashable, Iterator

import msgspec

from tessera.controller.filters.resources import too_small_resource
from tessera.controller.objects.node_info import NodeInfo
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.objects.resource_amounts import describe_amount
from tessera.controller.slicing.state.slicer_state import SlicerState
from tessera.placement.demand import NoNode, Reason


class SmallNodes:
    """Completes the reasons of one batch.

    Args:
        state: the slicer's state, which this class only reads.
    """

    def __init__(self, state: SlicerState) -> None:
        self._state = state
        #: By profiles, constraints and resources, the largest amount of each resource on a node.
        self._known: dict[Hashable, dict[str, int]] = {}

    def complete(self, pod: PodInfo, reason: Reason | None) -> Reason | None:
        """Returns the reason with the pod's amounts, if all nodes refuse it since they are too small even when empty.

        Any other reason stays as it is, and so does this one if a node is large enough that is closed to the pod now.
        """
        if not isinstance(reason, NoNode):
            return reason
        found = [too_small_resource(rule) for rule, _ in reason.counts]
        resources = [each for each in found if each is not None]
        if not resources or len(resources) < len(found):
            return reason
        largest = self._largest(pod, tuple(resources))
        lacks = [
            f"{describe_amount(each, pod.amounts[each])}, and the largest node has {describe_amount(each, most)}"
            for each, most in largest.items()
            if pod.amounts[each] > most
        ]
        if not lacks and any(all(_has(node, pod, each) for each in resources) for node in self._nodes(pod)):
            return reason
        together = " and ".join(describe_amount(each, pod.amounts[each]) for each in resources)
        return msgspec.structs.replace(reason, too_small=" and ".join(lacks) or f"{together}, and no node has both")

    def _largest(self, pod: PodInfo, resources: tuple[str, ...]) -> dict[str, int]:
        key = (pod.profiles, pod.constraints, resources)
        if key not in self._known:
            able = list(self._nodes(pod))
            self._known[key] = {
                each: max((node.allocatable_amount(each) or 0 for node in able), default=0) for each in resources
            }
        return self._known[key]

    def _nodes(self, pod: PodInfo) -> Iterator[NodeInfo]:
        """Yields the nodes that the pod selects and whose cards have its profiles; some may be closed now."""
        index, nodes = self._state.cluster.index, self._state.cluster.nodes
        for name in index.each(index.selected_nodes(pod.constraints)):
            if self._state.profiles_by_node.get(name, frozenset()).issuperset(pod.profiles):
                yield nodes[name]


def _has(node: NodeInfo, pod: PodInfo, resource: str) -> bool:
    """True if an empty node has what the pod requests of a resource."""
    most = node.allocatable_amount(resource)
    return most is None or pod.amounts[resource] <= most
