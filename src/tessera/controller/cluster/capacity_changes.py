"""Records the nodes where room may have grown, and the waiting pods that must be planned again.

Every node refused a waiting pod as the node was then, so the planner asks again only about nodes that changed since.
The planner asks waiting pods in rounds. A round ends, and a pod that was asked in a round waits for the next round,
however often room grows meanwhile. So no pod starves behind pods that go first and are refused each time.
"""

from collections.abc import Iterable

from tessera.api.names import NodeName, PodUid


class CapacityChanges:
    """Counts changes of nodes that may have made room, and remembers each refused pod with its count."""

    def __init__(self) -> None:
        self._count = 0
        self._nodes: dict[NodeName, int] = {}  # in the order of the counts
        self._everywhere = 0
        self._refused: dict[PodUid, int] = {}
        self._round = 0
        self._since: dict[int, frozenset[NodeName]] = {}

    # Changes of nodes and pods

    def room_may_have_grown(self, node: NodeName) -> None:
        """Notes that room may have grown on a node."""
        self._count += 1
        self._nodes.pop(node, None)
        self._nodes[node] = self._count
        self._since.clear()

    def room_may_have_grown_anywhere(self) -> None:
        """Notes that room may have grown on any node: every waiting pod is planned anew on all nodes."""
        self._count += 1
        self._everywhere = self._count

    def remove_node(self, node: NodeName) -> None:
        """Forgets a node that is gone."""
        self._nodes.pop(node, None)
        self._since.clear()

    def note_refusal(self, pod: PodUid) -> None:
        """Notes that a pod found no place on any node that changed up to now."""
        self._refused[pod] = self._count

    def forget_refusal(self, pod: PodUid) -> None:
        """Forgets a refusal: the pod will be planned on all nodes, or never again."""
        self._refused.pop(pod, None)

    # Pods to plan next

    def nodes_changed_since_refusal(self, pod: PodUid) -> frozenset[NodeName] | None:
        """Returns the nodes that changed since a pod was refused; None if the pod must be planned on all nodes."""
        count = self._refused.get(pod, -1)
        if count < self._everywhere or count < 0:
            return None
        if count not in self._since:
            found = []
            for node, changed in reversed(self._nodes.items()):
                if changed <= count:
                    break
                found.append(node)
            self._since[count] = frozenset(found)
        return self._since[count]

    def concerns_any_of(self, waiting: Iterable[PodUid]) -> bool:
        """True if one of these pods must be planned again."""
        return any(self._refused.get(pod, -1) < self._count for pod in waiting)

    def candidates(self, waiting: Iterable[PodUid]) -> list[PodUid]:
        """Returns the pods to plan next: the rest of this round, or all pods of a new one."""
        everybody = list(waiting)
        found = self._behind(everybody)
        if not found and self._round < self._count:
            self._round = self._count
            found = self._behind(everybody)
        return found

    def _behind(self, pods: Iterable[PodUid]) -> list[PodUid]:
        return [pod for pod in pods if self._refused.get(pod, -1) < self._round]
