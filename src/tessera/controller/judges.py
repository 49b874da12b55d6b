"""What the scheduler asks about the things on a node, beside a pod's constraints: one judge for each of its filters.

A pod's constraints (selector, affinity, taints) are answered for all nodes at once by
:class:`tessera.controller.node_index.NodeIndex`. A judge is asked about one pod and one node that these admit. It is
made for one batch: it starts from what stands on the nodes, and is told what the batch takes and gives back while it
is being planned, so that the pods of a batch are judged beside each other.
"""

from collections.abc import Mapping
from typing import Protocol

from tessera.api.names import NodeName
from tessera.controller.amounts import Amounts, add
from tessera.controller.eligibility import shortage
from tessera.controller.facts import NodeFacts, PodFacts


class Judge(Protocol):
    """One rule. What it costs must not grow with the pod's text, which :mod:`tessera.api.pod_bounds` bounds."""

    def refusal(self, pod: PodFacts, node: NodeName) -> str:
        """Why the pod cannot run there beside what the node has and the batch put there; empty if it can.

        The words are the same for every node, as in the scheduler's events: refusals are counted by them.
        """
        ...

    def take(self, pod: PodFacts, node: NodeName) -> None:
        """The batch puts the pod there."""
        ...

    def give_back(self, pod: PodFacts, node: NodeName) -> None:
        """It takes that back."""
        ...


class FreeAmounts:
    """NodeResourcesFit: CPU, memory, places for pods and all other resources that are counted.

    Args:
        nodes: what pods may hold on each.
        used: what is held on each.
    """

    def __init__(self, nodes: Mapping[NodeName, NodeFacts], used: Mapping[NodeName, Amounts]) -> None:
        self._nodes = nodes
        self._used = used
        self._taken: dict[NodeName, Amounts] = {}

    def refusal(self, pod: PodFacts, node: NodeName) -> str:
        """Names the first resource that is short."""
        used = self._used.get(node, {})
        taken = self._taken.get(node)
        both = used if not taken else {name: used.get(name, 0) + taken.get(name, 0) for name in pod.amounts}
        return shortage(pod.amounts, both, self._nodes[node].allocatable)

    def take(self, pod: PodFacts, node: NodeName) -> None:
        """Counts what the pod will hold; one that is bound is counted there already."""
        if not pod.node:
            add(self._taken.setdefault(node, {}), pod.amounts)

    def give_back(self, pod: PodFacts, node: NodeName) -> None:
        """Counts it no more."""
        if not pod.node:
            add(self._taken[node], pod.amounts, sign=-1)
