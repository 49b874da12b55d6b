"""Nodes that new pods of an owner avoid for a while, after the scheduler refused an earlier pod there.

The scheduler decides by many rules that the controller cannot check. After the scheduler refused a pod on a node, the
owner's next pod avoids that node; otherwise the controller would pin it there again. An owner whose pods are refused
again and again, on one node after the other, pauses on all nodes, each time for longer: else each of its pods would
hold slices for a minute and be evicted, without end. These entries live only in memory: a restarted controller has
none.
"""

from collections.abc import Hashable

from tessera.api.names import NodeName
from tessera.controller.cluster.filters import Filter
from tessera.controller.objects.pod_info import PodInfo
from tessera.reasons.node_rules import NodeRule, RuleKind

#: Seconds for which an owner's pods avoid a node that refused one of them.
AVOIDANCE_SECONDS = 600.0
#: The reason shown to a pod about a node that its owner avoids.
AVOIDED = NodeRule(RuleKind.AVOIDED)
#: The same about all nodes, for an owner that pauses.
PAUSED = NodeRule(RuleKind.PAUSED)
#: Refusals after which an owner pauses, and seconds of its first and its longest pause. An owner without a refusal for
#: twice the longest begins anew.
FREE_REFUSALS, FIRST_PAUSE, LONGEST_PAUSE = 2, 60.0, 3_600.0
#: Seconds in which refusals of several pods of an owner count as one: they were placed together.
TOGETHER = 50.0


class NodeAvoidance:
    """The nodes that each owner's pods avoid, by the owner's UID; a pod without an owner counts as its own.

    Attributes:
        refusals: by owner, its refusals, and the time of the last one; without one, nobody avoids a node.
    """

    def __init__(self) -> None:
        #: By owner and node, the time at which the entry ends. No inner dict is empty.
        self._nodes: dict[str, dict[NodeName, float]] = {}
        #: By owner that pauses, the time at which it goes on.
        self._pauses: dict[str, float] = {}
        self.refusals: dict[str, tuple[int, float]] = {}

    def add(self, owner: str, node: NodeName, until: float) -> None:
        """Makes an owner's pods avoid a node until :data:`AVOIDANCE_SECONDS` from now, and in time all nodes."""
        self._nodes.setdefault(owner, {})[node] = until
        now = until - AVOIDANCE_SECONDS
        count, last = self.refusals.get(owner, (0, now - TOGETHER))
        if now < last + TOGETHER:
            return
        count += 1
        self.refusals[owner] = count, now
        if count > FREE_REFUSALS:
            self._pauses[owner] = now + min(FIRST_PAUSE * 2 ** min(count - FREE_REFUSALS - 1, 16), LONGEST_PAUSE)

    def pauses(self, owner: str) -> bool:
        """True if an owner's pods avoid all nodes."""
        return owner in self._pauses

    def avoids(self, owner: str, node: NodeName) -> bool:
        """True if an owner's pods avoid a node."""
        return node in self._nodes.get(owner, ())

    def nodes_of(self, owner: str) -> frozenset[NodeName]:
        """Returns all nodes that an owner's pods avoid."""
        return frozenset(self._nodes.get(owner, ()))

    def next_expiry(self) -> float | None:
        """Returns the time at which the next entry ends; None if there is none."""
        ends = (min(nodes.values()) for nodes in self._nodes.values())
        return min((*ends, *self._pauses.values()), default=None)

    def expire_pauses(self, now: float) -> frozenset[str]:
        """Ends pauses that are over, and forgets old refusals; returns the owners that go on."""
        over = frozenset(owner for owner, until in self._pauses.items() if until <= now)
        for owner in over:
            del self._pauses[owner]
        for owner in [owner for owner, (_, last) in self.refusals.items() if last + 2 * LONGEST_PAUSE <= now]:
            del self.refusals[owner]
        return over

    def expire(self, now: float) -> frozenset[NodeName]:
        """Removes entries that have ended; returns the nodes that became usable again."""
        over = [(owner, node) for owner, nodes in self._nodes.items() for node, until in nodes.items() if until <= now]
        for owner, node in over:
            del self._nodes[owner][node]
            if not self._nodes[owner]:
                del self._nodes[owner]
        return frozenset(node for _, node in over)


class AvoidedNodes(Filter):
    """Refuses nodes that the pod's owner avoids; a :class:`~tessera.controller.cluster.filters.Filter`."""

    def __init__(self, avoidance: NodeAvoidance) -> None:
        self._avoidance = avoidance

    def refusal(self, pod: PodInfo, node: NodeName) -> NodeRule | None:
        """Refuses a node that the pod's owner avoids."""
        if self._avoidance.pauses(pod.avoids_as):
            return PAUSED
        return AVOIDED if self._avoidance.avoids(pod.avoids_as, node) else None

    def kind(self, pod: PodInfo) -> Hashable:
        """Returns the nodes that the pod's owner avoids, and if it pauses."""
        return (self._avoidance.pauses(pod.avoids_as), self._avoidance.nodes_of(pod.avoids_as))
