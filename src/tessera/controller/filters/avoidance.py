"""Nodes that new pods of an owner avoid for a while, after the scheduler refused an earlier pod there.

The scheduler decides by many rules that the controller cannot judge. After the scheduler refused a pod on a node, the
owner's next pod avoids that node; otherwise the controller would pin it there again. These entries live only in memory:
a restarted controller has none.
"""

from tessera.api.names import NodeName

#: Seconds for which an owner's pods avoid a node that refused one of them.
AVOIDANCE_SECONDS = 600.0


class NodeAvoidance:
    """The nodes that each owner's pods avoid, by the owner's UID."""

    def __init__(self) -> None:
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
