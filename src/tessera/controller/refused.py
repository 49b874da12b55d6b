"""Pods that cannot start where they were pinned: for how long, and which nodes their owners avoid then.

The scheduler has the last word about much that the controller cannot judge, and an agent may die before a bound pod's
containers start. A pod that is refused for too long is taken back. After a refusal by the scheduler, its
owner's next pod avoids the node for a while, or it would be pinned there again. Both live in memory only: a controller
that starts anew counts from there.
"""

from collections.abc import Set as AbstractSet

from tessera.api.names import NodeName, PodUid

#: Seconds after which a pod that is refused is taken back. A node's kubelet publishes what an agent
#: offers within 10 s, a restarted agent within half a minute.
PATIENCE = 60.0
#: Seconds for which an owner's pods avoid a node that one of them was refused on.
AVOIDANCE = 600.0


class RefusedPods:
    """Since when pods are refused.

    Attributes:
        patience: seconds that a pod may be refused.
    """

    def __init__(self, patience: float = PATIENCE) -> None:
        self.patience = patience
        self._since: dict[PodUid, float] = {}

    def follow(self, refused: AbstractSet[PodUid], now: float) -> None:
        """Takes over whom the scheduler refuses now."""
        for uid in self._since.keys() - refused:
            del self._since[uid]
        for uid in refused:
            self._since.setdefault(uid, now)

    def next(self) -> float | None:
        """Time at which the first refused pod loses its slices; None if no pod is refused."""
        return min(self._since.values()) + self.patience if self._since else None

    def due(self, now: float) -> list[PodUid]:
        """Those whose time is over; if they are refused still, they get as much again."""
        found = [uid for uid, since in self._since.items() if since + self.patience <= now]
        for uid in found:
            self._since[uid] = now
        return found


class Avoidance:
    """Nodes that owners avoid, by the owner's UID."""

    def __init__(self) -> None:
        self._nodes: dict[str, dict[NodeName, float]] = {}

    def add(self, owner: str, node: NodeName, until: float) -> None:
        """An owner avoids a node up to this time."""
        self._nodes.setdefault(owner, {})[node] = until

    def avoids(self, owner: str, node: NodeName) -> bool:
        """Tells if an owner avoids a node."""
        return bool(owner) and node in self._nodes.get(owner, ())

    def of(self, owner: str) -> frozenset[NodeName]:
        """All nodes that an owner avoids."""
        return frozenset(self._nodes.get(owner, ())) if owner else frozenset()

    def next(self) -> float | None:
        """Time at which the next node is not avoided any more; None if no owner avoids a node."""
        return min((min(nodes.values()) for nodes in self._nodes.values()), default=None)

    def end(self, now: float) -> frozenset[NodeName]:
        """Forgets what is over; returns the nodes that somebody may use again."""
        over = [(owner, node) for owner, nodes in self._nodes.items() for node, until in nodes.items() if until <= now]
        for owner, node in over:
            del self._nodes[owner][node]
            if not self._nodes[owner]:
                del self._nodes[owner]
        return frozenset(node for _, node in over)
