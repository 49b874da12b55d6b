"""Judges a node by what pods hold on it, one class for each filter of the scheduler.

A pod's constraints (selector, affinity, taints) are answered for all nodes at once by
:class:`tessera.controller.cluster.node_index.NodeIndex`. A filter is asked about one pod and one node that these admit.
It is made for one batch: it starts from what stands on the nodes, and is told what the batch takes and gives back
while it is being planned, so that the pods of a batch are judged beside each other.
"""

from collections.abc import Callable, Hashable, Mapping
from typing import Protocol

from tessera.api.names import NodeName
from tessera.controller.filters.avoidance import NodeAvoidance
from tessera.controller.filters.node_filters import device_shortages, first_shortage
from tessera.controller.objects.node_info import NodeInfo
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.objects.resource_amounts import Amounts, add_amounts

#: The reason that a pod reads about a node that its owner avoids.
AVOIDED = "node(s) where the scheduler refused the owner's last pod"


class Filter(Protocol):
    """One rule. What it costs must not grow with the pod's text, which :mod:`tessera.api.pods.size_limits` bounds.

    Attributes:
        freed_with_cards: the resource comes free together with slots of the cards. So the filter says nothing about a
            node whose cards have no room.
    """

    freed_with_cards: bool

    def refusal(self, pod: PodInfo, node: NodeName) -> str:
        """Why the pod cannot run there beside what the node has and the batch put there; empty if it can.

        The words are the same for every node, as in the scheduler's events: refusals are counted by them.
        """
        ...

    def kind(self, pod: PodInfo) -> Hashable:
        """Equal for pods that it treats alike."""
        ...

    def reserve(self, pod: PodInfo, node: NodeName) -> None:
        """The batch puts the pod there."""
        ...

    def unreserve(self, pod: PodInfo, node: NodeName) -> None:
        """It takes that back."""
        ...


class FreeAmounts:
    """NodeResourcesFit: CPU, memory, places for pods and all other resources that are counted.

    Args:
        nodes: what pods may hold on each.
        used: what is held on each.
    """

    freed_with_cards = False

    def __init__(self, nodes: Mapping[NodeName, NodeInfo], used: Mapping[NodeName, Amounts]) -> None:
        self._nodes = nodes
        self._used = used
        self._taken: dict[NodeName, Amounts] = {}

    def refusal(self, pod: PodInfo, node: NodeName) -> str:
        """Names the first resource that is short."""
        return first_shortage(pod.amounts, self._held(pod, node), self._nodes[node])

    def _held(self, pod: PodInfo, node: NodeName) -> Amounts:
        used = self._used.get(node, {})
        taken = self._taken.get(node)
        return used if not taken else {name: used.get(name, 0) + taken.get(name, 0) for name in pod.amounts}

    def kind(self, pod: PodInfo) -> Hashable:
        """The amounts that the pod requests."""
        return tuple(sorted(pod.amounts.items()))

    def reserve(self, pod: PodInfo, node: NodeName) -> None:
        """Counts what the pod will hold; one that is bound is counted there already."""
        if not pod.node:
            add_amounts(self._taken.setdefault(node, {}), pod.amounts)

    def unreserve(self, pod: PodInfo, node: NodeName) -> None:
        """Counts it no more."""
        if not pod.node:
            add_amounts(self._taken[node], pod.amounts, sign=-1)


class FreeDevices(FreeAmounts):
    """The same for what a node has from its agent: devices of MIG profiles as kubelet publishes them, and the quota."""

    freed_with_cards = True

    def refusal(self, pod: PodInfo, node: NodeName) -> str:
        """Names the first resource that is short."""
        return next(device_shortages(pod.amounts, self._held(pod, node), self._nodes[node]), "")


class OfferedDevices:
    """Of that, what stays short whatever slices end: kubelet publishes too little, or pods without slices hold it.

    Kubelet publishes 0 devices as soon as the agent is gone.

    Args:
        nodes: what pods may hold on each.
        used: what is held on each.
        used_without_slices: what pods hold of a node that have no slices there; asked only where it matters.
    """

    freed_with_cards = False

    def __init__(
        self,
        nodes: Mapping[NodeName, NodeInfo],
        used: Mapping[NodeName, Amounts],
        used_without_slices: Callable[[NodeName], Amounts],
    ) -> None:
        self._nodes = nodes
        self._used = used
        self._used_without_slices = used_without_slices
        self._others: dict[NodeName, Amounts] = {}

    def refusal(self, pod: PodInfo, node: NodeName) -> str:
        """Names the first resource that is short."""
        facts = self._nodes[node]
        if not any(device_shortages(pod.amounts, self._used.get(node, {}), facts)):
            return ""
        if node not in self._others:
            self._others[node] = self._used_without_slices(node)
        return next(device_shortages(pod.amounts, self._others[node], facts), "")

    def kind(self, pod: PodInfo) -> Hashable:
        """The amounts that the pod requests."""
        return tuple(sorted(pod.amounts.items()))

    def reserve(self, pod: PodInfo, node: NodeName) -> None:
        """Slices of the batch say nothing here."""

    def unreserve(self, pod: PodInfo, node: NodeName) -> None:
        """Slices of the batch say nothing here."""


class AvoidedNodes:
    """Nodes on which the scheduler refused an earlier pod of the same owner, for a while."""

    freed_with_cards = False

    def __init__(self, avoidance: NodeAvoidance) -> None:
        self._avoidance = avoidance

    def refusal(self, pod: PodInfo, node: NodeName) -> str:
        """Refuses a node that the pod's owner avoids."""
        return AVOIDED if self._avoidance.avoids(pod.owner, node) else ""

    def kind(self, pod: PodInfo) -> Hashable:
        """The nodes that its owner avoids."""
        return self._avoidance.nodes_of(pod.owner)

    def reserve(self, pod: PodInfo, node: NodeName) -> None:
        """Nothing to do."""

    def unreserve(self, pod: PodInfo, node: NodeName) -> None:
        """Nothing to do."""
