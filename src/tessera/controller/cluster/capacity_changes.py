"""Changes of nodes that may have made room, counted.

A pod that was refused is planned again only on nodes that changed after the count at its refusal.
"""

from tessera.api.names import NodeName


class CapacityChanges:
    """Counts changes of nodes that may have made room.

    Attributes:
        count: number of changes so far.
    """

    def __init__(self) -> None:
        self.count = 0
        #: ``count`` at the last change of each node, in the order of the counts.
        self._nodes: dict[NodeName, int] = {}
        #: ``count`` at the last change that concerns all nodes.
        self._everywhere = 0
        #: Remembered answers: nodes that changed after a count. Emptied by each change of a node.
        self._since: dict[int, frozenset[NodeName]] = {}

    def room_may_have_grown(self, node: NodeName) -> None:
        """Notes that room may have grown on a node."""
        self.count += 1
        self._nodes.pop(node, None)
        self._nodes[node] = self.count
        self._since.clear()

    def room_may_have_grown_anywhere(self) -> None:
        """Notes that room may have grown on any node: every waiting pod is planned again on all nodes."""
        self.count += 1
        self._everywhere = self.count

    def remove_node(self, node: NodeName) -> None:
        """Forgets a node that is gone."""
        self._nodes.pop(node, None)
        self._since.clear()

    def last_change(self, node: NodeName) -> int:
        """Returns :attr:`count` at the last change that concerns a node; 0 if there was none."""
        return max(self._nodes.get(node, 0), self._everywhere)

    def nodes_changed_since(self, count: int) -> frozenset[NodeName] | None:
        """Returns the nodes that changed since :attr:`count` had this value; None if any may have, or it is below 0."""
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
