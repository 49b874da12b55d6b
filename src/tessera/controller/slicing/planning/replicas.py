"""Where the replicas of one owner are. By default they go apart, over nodes first and then over cards.

Kubernetes' scheduler spreads the replicas of a ReplicaSet or a StatefulSet over nodes, and the controller pins pods, so
it must do the same. What the manifest prefers counts first, and the packing before all of it.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from tessera.api.names import NodeName, PodUid
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.slicing.state.slicer_state import AllocationTable

#: Replicas that are told apart: on a node, and on a card, which has at most seven slices.
_ON_NODE, _ON_CARD = 255, 15
#: What a place is worth that has no other replica.
APART = _ON_NODE * (_ON_CARD + 1) + _ON_CARD


@dataclass(frozen=True, slots=True)
class ReplicaPlaces:
    """The replicas of one owner, by node, and their slices by UUID of the card."""

    nodes: Counter[NodeName] = field(default_factory=Counter)
    cards: Counter[str] = field(default_factory=Counter)

    def worth(self, node: NodeName, gpu: str = "") -> int:
        """What a place is worth: the fewer replicas on the node, then on the card, the more; :data:`APART` at most."""
        on_node = _ON_NODE - min(_ON_NODE, self.nodes[node])
        return on_node * (_ON_CARD + 1) + _ON_CARD - min(_ON_CARD, self.cards[gpu])


class Replicas:
    """The replicas of owners as one batch sees them; it counts those that the batch places by node only.

    Args:
        placed: by :attr:`PodInfo.replica_of`, the pods and their nodes.
        allocations: their slices.
    """

    def __init__(
        self, placed: Mapping[tuple[str, str], Mapping[PodUid, NodeName]], allocations: AllocationTable
    ) -> None:
        self._placed = placed
        self._allocations = allocations
        self._known: dict[tuple[str, str], ReplicaPlaces] = {}

    def of(self, pod: PodInfo) -> ReplicaPlaces:
        """Returns the places of the replicas beside which a pod is one."""
        owner = pod.replica_of
        assert owner is not None, f"{pod.key} is no replica"
        if owner not in self._known:
            found = self._known[owner] = ReplicaPlaces()
            for uid, node in self._placed.get(owner, {}).items():
                found.nodes[node] += 1
                allocation = self._allocations.get(node, uid)
                found.cards.update(each.gpu_uuid for each in (allocation.slices if allocation is not None else ()))
        return self._known[owner]
