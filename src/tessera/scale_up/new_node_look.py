"""The properties of a new node, and the rule by which it would refuse a pod even without other pods. Pure."""

from collections.abc import Iterator

import msgspec

from tessera.api.names import NodeName
from tessera.controller.filters.resources import device_shortages, shortages
from tessera.controller.objects.node_constraints import find_refusal
from tessera.controller.objects.node_info import NodeInfo
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.slicing.state.slicer_state import SlicerState
from tessera.limits.planning import DECISION_STEPS
from tessera.placement.empty_nodes import EmptyNodes, Shape, none_could_hold
from tessera.placement.step_budget import StepBudget
from tessera.reasons.node_rules import NodeRule

#: Taints of nodes that an autoscaler removes: Cluster Autoscaler's, and Karpenter's of two versions.
_REMOVED_BY = frozenset({"ToBeDeletedByClusterAutoscaler", "karpenter.sh/disrupted", "karpenter.sh/disruption"})


class NewNodeLook(msgspec.Struct, frozen=True):
    """A node at one time.

    Attributes:
        info: its values.
        offered: the profiles that its cards can make, and its devices; none before it has listed its cards.
        shape: its cards.
        fault: what is wrong with its object.
    """

    info: NodeInfo
    offered: frozenset[str]
    shape: Shape
    fault: str

    @property
    def is_leaving(self) -> bool:
        """True if it is about to be removed, or does not answer: what it was like before says more."""
        keys = {taint.key for taint in self.info.taints}
        return not self.info.ready or self.info.cordoned or bool(keys & _REMOVED_BY)

    def refusal(self, pod: PodInfo) -> NodeRule | str:
        """Returns what keeps the pod off the node, other pods left aside: a rule, or a text; empty if nothing does."""
        return next(self._refusals(pod), "")

    def _refusals(self, pod: PodInfo) -> Iterator[NodeRule | str]:
        if self.fault:
            yield f"its object breaks a rule: {self.fault}"
        if why := find_refusal(pod.constraints, self.info):
            yield why
        yield from shortages(pod.amounts, {}, self.info)
        yield from device_shortages(pod.amounts, {}, self.info)
        missing = sorted(set(pod.profiles) - self.offered)
        if missing:
            yield f"its cards offer no {missing[0]}"
        elif not pod.devices and none_could_hold([self.shape], pod.profiles, StepBudget(int(DECISION_STEPS))):
            yield "its cards cannot hold the pod's slices together"


def look_at(state: SlicerState, node: NodeName) -> NewNodeLook | None:
    """Returns what the node is like now; None if it is gone, or was not read yet."""
    info = state.cluster.nodes.get(node)
    if info is None:
        return None
    fleet = state.inventory.fleet
    cards = [card.geometry for card in fleet.cards(node)] if node in fleet.nodes else []
    offered = state.profiles_by_node.get(node, frozenset())
    return NewNodeLook(info, offered, EmptyNodes().shape(cards), state.faults.get(node, ""))
