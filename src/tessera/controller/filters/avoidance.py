"""Nodes that the owners of refused pods avoid for a while.

The scheduler has the last word about much that the controller cannot judge. After it refused a pod on a node, the
owner's next pod avoids that node, or it would be pinned there again. This lives in memory only: a controller that
starts anew forgets it.
"""

from tessera.api.names import NodeName

#: Seconds for which an owner's pods avoid a node that one of them was refused on.
AVOIDANCE_SECONDS = 600.0


class NodeAvoidance:
    """Nodes that owners avoid, by the owner's UID."""

    def __init__(self) -> None:
        self._nodes: dict[str, dict[NodeName, float]] = {}

    def add(self, owner: str, node: NodeName, until: float) -> None:
        """An owner avoids a node up to this time."""
        self._nodes.setdefault(owner, {})[node] = until

    def avoids(self, owner: str, node: NodeName) -> bool:
        """Tells if an owner avoids a node."""
        return bool(owner) and node in self._nodes.get(owner, ())

    def nodes_of(self, owner: str) -> frozenset[NodeName]:
        """All nodes that an owner avoids."""
        return frozenset(self._nodes.get(owner, ())) if owner else frozenset()

    def next_expiry(self) -> float | None:
        """Time at which the next node is not avoided any more; None if no owner avoids a node."""
        return min((min(nodes.values()) for nodes in self._nodes.values()), default=None)

    def expire(self, now: float) -> frozenset[NodeName]:
        """Forgets what is over; returns the nodes that somebody may use again."""
        over = [(owner, node) for owner, nodes in self._nodes.items() for node, until in nodes.items() if until <= now]
        for owner, node in over:
            del self._nodes[owner][node]
            if not self._nodes[owner]:
                del self._nodes[owner]
        return frozenset(node for _, node in over)
