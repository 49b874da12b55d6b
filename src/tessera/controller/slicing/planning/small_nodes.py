"""Says of a pod that it is larger than every node that may take it, with the amounts of the largest one."""

import sys
from collections.abc import Hashable, Iterator

import msgspec

from tessera.controller.objects.node_info import NodeInfo
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.objects.resource_amounts import describe_amount
from tessera.controller.slicing.state.slicer_state import SlicerState
from tessera.reasons.node_rules import RuleKind
from tessera.reasons.reason import NoNode, Reason


class SmallNodes:
    """Completes the reasons of one batch.

    Args:
        state: the slicer's state, which this class only reads.

    Attributes:
        cost: nodes that were looked at so far; never decreases.
    """

    def __init__(self, state: SlicerState) -> None:
        self.cost = 0
        self._state = state
        #: By profiles, constraints and resources, the amounts of the largest nodes.
        self._known: dict[Hashable, list[tuple[int, ...]]] = {}

    def complete(self, pod: PodInfo, reason: Reason | None) -> Reason | None:
        """Returns the reason with the pod's amounts, if all nodes refuse it since they are too small even when empty.

        Any other reason stays as it is, and so does this one if a node is large enough that is closed to the pod now.
        """
        if not isinstance(reason, NoNode):
            return reason
        rules = [each.rule for each in reason.counts]
        resources = [each.about for each in rules if each.kind is RuleKind.TOO_SMALL]
        if not resources or len(resources) < len(rules):
            return reason
        largest = self._largest(pod, tuple(resources))
        wanted = tuple(pod.amounts[each] for each in resources)
        most = [max(amounts, default=0) for amounts in zip(*largest, strict=True)] or [0] * len(wanted)
        lacks = [
            f"{describe_amount(each, amount)}, and the largest node has {describe_amount(each, there)}"
            for each, amount, there in zip(resources, wanted, most, strict=True)
            if amount > there
        ]
        if not lacks and any(_covers(one, wanted) for one in largest):
            return reason
        together = " and ".join(describe_amount(each, pod.amounts[each]) for each in resources)
        return msgspec.structs.replace(reason, too_small=" and ".join(lacks) or f"{together}, and no node has both")

    def _largest(self, pod: PodInfo, resources: tuple[str, ...]) -> list[tuple[int, ...]]:
        """Returns what the largest nodes have of the resources, without those of which another has as much of each."""
        key = (pod.profiles, pod.constraints, resources)
        if key not in self._known:
            found: list[tuple[int, ...]] = []
            for node in self._nodes(pod):
                amounts = tuple(_amount(node, each) for each in resources)
                if not any(_covers(one, amounts) for one in found):
                    found = [*(one for one in found if not _covers(amounts, one)), amounts]
            self._known[key] = found
        return self._known[key]

    def _nodes(self, pod: PodInfo) -> Iterator[NodeInfo]:
        """Yields the nodes that the pod selects and whose cards have its profiles; some may be closed now."""
        index, nodes = self._state.cluster.index, self._state.cluster.nodes
        for name in index.each(index.selected_nodes(pod.constraints)):
            self.cost += 1
            if self._state.profiles_by_node.get(name, frozenset()).issuperset(pod.profiles):
                yield nodes[name]


def _amount(node: NodeInfo, resource: str) -> int:
    """Returns the amount of a resource on an empty node; the largest number if kubelet has not published it yet."""
    amount = node.allocatable_amount(resource)
    return sys.maxsize if amount is None else amount


def _covers(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """True if the first amounts are at least the others."""
    return all(mine >= its for mine, its in zip(one, other, strict=True))
