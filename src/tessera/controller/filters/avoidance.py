"""Nodes that new pods of an owner avoid for a while, after the scheduler refused an earlier pod there.

The scheduler decides by many rules that the controller cannot check. After the scheduler refused a pod on a node, the
owner's next pod avoids that node; otherwise the controller would pin it there again. These entries live only in memory:
a restarted controller has none.
"""

from collections.abc import Hashable

from tessera.api.names import NodeName
from tessera.controller.objects.pod_info import PodInfo

#: Seconds for which an owner's pods avoid a node that refused one of them.
AVOIDANCE_SECONDS = 600.0
#: The reason shown to a pod about a node that its owner avoids.
AVOIDED = "node(s) where the scheduler refused the owner's last pod"


class NodeAvoidance:
    """The nodes that each owner's pods avoid, by the owner's UID."""

    def __init__(self) -> None:
        #: By owner and node, the time at which the entry ends. No inner dict is empty.
        self._nodes: dict[str, dict[NodeName, float]] = {}

    def add(self, owner: str, node: NodeName, until: float) -> None:
        """Makes an owner's pods avoid a node until this time."""
        self._nodes.setdefault(owner, {})[node] = until

    def avoids(self, owner: str, node: NodeName) -> bool:
        """True if an owner's pods avoid a node."""
        return bool(owner) and node in self._nodes.get(owner, ())

    def nodes_of(self, owner: str) -> frozenset[NodeName]:
        """Returns all nodes that an owner's pods avoid."""
        return frozenset(self._nodes.get(owner, ())) if owner else frozenset()

    def next_expiry(self) -> float | None:
        """Returns the time at which the next entry ends; None if there is none."""
        return min((min(nodes.values()) for nodes in self._nodes.values()), default=None)

    def expire(self, now: float) -> frozenset[NodeName]:
        """Removes entries that have ended; returns the nodes that became usable again."""
        over = [(owner, node) for owner, nodes in self._nodes.items() for node, until in nodes.items() if until <= now]
        for owner, node in over:
            del self._nodes[owner][node]
            if not self._nodes[owner]:
                del self._nodes[owner]
        return frozenset(node for _, node in over)


class AvoidedNodes:
    """Refuses nodes that the pod's owner avoids; a :class:`~tessera.controller.filters.resources.Filter`."""

    freed_with_cards = False

    def __init__(self, avoidance: NodeAvoidance) -> None:
        self._avoidance = avoidance

    def refusal(self, pod: PodInfo, node: NodeName) -> str:
        """Refuses a node that the pod's owner avoids."""
        return AVOIDED if self._avoidance.avoids(pod.owner, node) else ""

    def kind(self, pod: PodInfo) -> Hashable:
        """Returns the nodes that the pod's owner avoids."""
        return self._avoidance.nodes_of(pod.owner)

    def reserve(self, pod: PodInfo, node: NodeName) -> None:
        """Does nothing: planning a pod makes no node avoided."""

    def unreserve(self, pod: PodInfo, node: NodeName) -> None:
        """Does nothing: planning a pod makes no node avoided."""
