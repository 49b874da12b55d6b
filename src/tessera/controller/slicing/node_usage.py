"""What pods and promises hold of each node besides slices: CPU, memory, places for pods.

A pod is counted on one node: where it is bound, else where it was promised a place. Whoever knows which, says so.
"""

from tessera.api.names import NodeName, PodUid
from tessera.controller.objects.resource_amounts import Amounts, add


class Charges:
    """The sums.

    Attributes:
        used: what is held of each node; nodes of which nothing is held are left out.
    """

    def __init__(self) -> None:
        self.used: dict[NodeName, Amounts] = {}
        self._of: dict[PodUid, tuple[NodeName, Amounts]] = {}

    def charge(self, uid: PodUid, node: NodeName | None, amounts: Amounts) -> NodeName | None:
        """Counts a pod on this node and no other, on none if None.

        Returns:
            The node whose sums may have become smaller; None if there is none.
        """
        new = (node, amounts) if node else None
        old = self._of.get(uid)
        if new == old:
            return None
        if old is not None:
            del self._of[uid]
            self._add(*old, sign=-1)
        if new is not None:
            self._of[uid] = new
            self._add(*new, sign=1)
        return old[0] if old is not None else None

    def _add(self, node: NodeName, amounts: Amounts, *, sign: int) -> None:
        total = self.used.setdefault(node, {})
        add(total, amounts, sign=sign)
        if not total:
            del self.used[node]
