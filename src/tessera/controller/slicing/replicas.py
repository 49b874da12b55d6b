"""Where the replicas of one owner are. By default they go apart, over nodes first and then over cards.

Kubernetes' scheduler spreads the replicas of a ReplicaSet or a StatefulSet over nodes, and the controller pins pods, so
it must do the same. What the manifest prefers counts first, and the packing before all of it.
"""

from collections import Counter
from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from tessera.api.names import NodeName, PodUid
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.slicing.state.slicer_state import AllocationTable

#: Replicas that are told apart: on a node, and on a card, which has at most seven slices.
_ON_NODE, _ON_CARD = 255, 15
#: What a place is worth that has no other replica.
APART = _ON_NODE * (_ON_CARD + 1) + _ON_CARD


class ReplicaPlaces:
    """The replicas of one owner, by node and card; a batch adds those that it places by node only.

    Args:
        placed: by node, the pods.
        allocations: their slices.
    """

    def __init__(self, placed: Mapping[NodeName, AbstractSet[PodUid]], allocations: AllocationTable) -> None:
        self._placed = placed
        self._allocations = allocations
        #: Replicas that the batch has placed, by node.
        self._added: Counter[NodeName] = Counter()
        #: Their slices by UUID of the card, for each node that somebody asked about.
        self._cards: dict[NodeName, Counter[str]] = {}

    def __bool__(self) -> bool:
        return bool(self._placed or self._added)

    def add(self, node: NodeName, count: int) -> None:
        """Counts replicas that the batch places on a node, or takes from it."""
        self._added[node] += count

    def total(self) -> int:
        """Returns the number of all."""
        return sum(map(len, self._placed.values())) + self._added.total()

    def on_node(self, node: NodeName) -> int:
        """Returns the number of those on a node."""
        return len(self._placed.get(node, ())) + self._added[node]

    def on_card(self, node: NodeName, gpu: str) -> int:
        """Returns the number of their slices on a card."""
        if node not in self._cards:
            found = (self._allocations.get(node, uid) for uid in self._placed.get(node, ()))
            slices = (each.gpu_uuid for one in found if one is not None for each in one.slices)
            self._cards[node] = Counter(slices)
        return self._cards[node][gpu]

    def worth(self, node: NodeName, gpu: str = "") -> int:
        """What a place is worth: the fewer replicas on the node, then on the card, the more; :data:`APART` at most."""
        on_node = _ON_NODE - min(_ON_NODE, self.on_node(node))
        return on_node * (_ON_CARD + 1) + _ON_CARD - (min(_ON_CARD, self.on_card(node, gpu)) if gpu else 0)


class Replicas:
    """The replicas of owners as one batch sees them.

    Args:
        placed: by :attr:`PodInfo.replica_of` and node, the pods.
        allocations: their slices.
    """

    def __init__(
        self, placed: Mapping[tuple[str, str], Mapping[NodeName, AbstractSet[PodUid]]], allocations: AllocationTable
    ) -> None:
        self._placed = placed
        self._allocations = allocations
        self._known: dict[tuple[str, str], ReplicaPlaces] = {}

    def of(self, pod: PodInfo) -> ReplicaPlaces:
        """Returns the places of the replicas beside which a pod is one."""
        owner = pod.replica_of
        assert owner is not None, f"{pod.key} is no replica"
        if owner not in self._known:
            self._known[owner] = ReplicaPlaces(self._placed.get(owner, {}), self._allocations)
        return self._known[owner]
