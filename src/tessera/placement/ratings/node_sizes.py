"""How large the nodes of each kind of cards are, and so which kinds suit a request at all.

A request that only the largest nodes can hold is as bound to their cards as one that names their model: they have a
price for others (:func:`tessera.placement.ratings.card_demand.scarcity`). Sizes are rounded up, so that a kind is
never left out whose nodes are large enough by less than a step.
"""

from collections import Counter
from typing import NamedTuple

from tessera.placement.ratings.card_request import CPU_STEP, MEMORY_STEP, CardRequest, Kind


class NodeSize(NamedTuple):
    """What pods can request on a node that is empty.

    Attributes:
        cpu: thousandths of a CPU.
        memory: MiB.
        cards: number of cards of the kind.
    """

    cpu: int
    memory: int
    cards: int


class NodeSizes:
    """The sizes of all nodes with cards of one resource.

    Attributes:
        changes: how often a size came that no node of its kind had, or the last node of a size went.
    """

    def __init__(self) -> None:
        self.changes = 0
        self._nodes: dict[str, tuple[Kind, NodeSize]] = {}
        #: By kind, the nodes of each size; no count is 0, and no inner counter is empty.
        self._sizes: dict[Kind, Counter[NodeSize]] = {}

    def put(self, node: str, kind: Kind = "", size: NodeSize | None = None) -> None:
        """Sets the size of a node and the kind of its cards; None forgets the node."""
        former = self._nodes.get(node)
        new = (kind, _rounded_up(size)) if size is not None else None
        if former == new:
            return
        if former is not None:
            del self._nodes[node]
            self._count(*former, -1)
        if new is not None:
            self._nodes[node] = new
            self._count(*new, 1)

    def _count(self, kind: Kind, size: NodeSize, more: int) -> None:
        sizes = self._sizes.setdefault(kind, Counter())
        before = sizes[size]
        sizes[size] += more
        if not before or not sizes[size]:
            self.changes += 1
        if not sizes[size]:
            del sizes[size]
            if not sizes:
                del self._sizes[kind]

    def narrow(self, request: CardRequest) -> CardRequest:
        """Returns the request with those of its kinds whose nodes can be large enough; with all if none is."""
        kinds = tuple(kind for kind in request.kinds if self._suits(kind, request))
        if not kinds or len(kinds) == len(request.kinds):
            return request
        return request._replace(kinds=kinds, pinned=True)

    def _suits(self, kind: Kind, request: CardRequest) -> bool:
        sizes = self._sizes.get(kind)
        return sizes is None or any(
            size.cpu >= request.cpu and size.memory >= request.memory and size.cards >= request.cards for size in sizes
        )


def _rounded_up(size: NodeSize) -> NodeSize:
    return NodeSize(-(-size.cpu // CPU_STEP) * CPU_STEP, -(-size.memory // MEMORY_STEP) * MEMORY_STEP, size.cards)
