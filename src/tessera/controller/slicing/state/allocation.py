"""The life of one allocation, as a table of the next writes; and the slots that all of them occupy on cards.

An allocation is one pod's slices on one node. The node's Instaslice object *records* it: the request (``spec``), and
the result (``status``) with its two states. The next step follows only from the record and from the pod, never from
earlier actions of this process. So a crash between any two writes needs no special handling.

================================  ===========================================  ==============================
pod                               record                                       next
================================  ===========================================  ==============================
wants its slices                  no request                                   write the request
behind our gate                   request                                      pin and ungate the pod
ungated                           request                                      nothing, it is settled
lives, but given up               request, or result without agent's state     write the result as ``deleting``
lives, but given up               ``deleting``                                 wait for the agent's ``deleted``
lives, but given up               nothing, and a request was sent [3]_         remove the request
gone or finished [1]_, or         request                                      remove the request
agent says ``deleted``
gone or finished, or given up     result alone, agent says ``deleted`` [2]_    remove the result
gone or finished                  result alone                                 wait until the agent removes it
gone, finished, or given up       nothing                                      forget it
behind our gate                   none, since it has whole cards [4]_          pin and ungate the pod
================================  ===========================================  ==============================

.. [1] or being deleted while bound to no node: it will never run, though a finalizer may keep it.
.. [2] or the record names no positions. An agent of an earlier version leaves results to the controller.
.. [3] and no answer came, so the server may still record it. An agent without a request removes a result at once.
.. [4] or shares: the pin that removes the gate is their record. A further kind of request may have a record of its
   own: then its write takes the place of the request's, and no agent has to destroy anything.

No later pod has the UID of a deleted pod, so its request can be removed before its slices are destroyed. A living pod
may be promised other slices at once; so the agent must first report that the old ones are destroyed.

The slots are free again when the agent says ``deleted`` or has removed the result, or when nothing was ever recorded.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache

import msgspec

from tessera.api.instaslice import (
    AllocationRequest,
    AllocationResult,
    AllocationStatus,
    ForeignSlice,
    Instaslice,
    NodeResources,
    PodRef,
    RequestedResources,
    Slice,
    make_result,
)
from tessera.api.names import NodeName, PodUid, device_id
from tessera.api.nodes.node_cards import CardGeometries
from tessera.controller.objects.pod_info import SLICES, KindOfRequest, PodInfo, Record
from tessera.controller.objects.resource_amounts import Amounts, format_amount
from tessera.mig.geometry import Geometry
from tessera.mig.names import plain_profile
from tessera.placement.fleet import CardPlacement, Fleet, PlaceOccupied, UnknownCard

#: The owner of slices that wait for their end, where a new controller finds only their result: it names no pod.
DELETED_POD = "a deleted pod"
#: Resources of the pod that a request lists.
_SHOWN: tuple[str, ...] = ("cpu", "memory")


class AllocationStep(Enum):
    """The next step of an allocation."""

    REQUEST = "write the request"
    UNGATE = "pin and ungate the pod"
    DELETING = "write the state deleting"
    WAIT = "wait for the agent"
    DROP_REQUEST = "remove the request"
    DROP_RESULT = "remove the result"
    FORGET = "forget it"
    SETTLED = "nothing"


@dataclass(slots=True, eq=False)
class Allocation:
    """One pod's slices on one node.

    Attributes:
        node: the node.
        uid: the pod's UID.
        namespace: the pod's namespace.
        name: the pod's name.
        slices: the positions; never changed.
        amounts: the amounts that the pod holds on the node besides slices.
        sent: a request was sent, and its result at the server is not known yet.
        requested: the request is recorded.
        result: the recorded states (controller, agent); None without a result.
        given_up: the controller takes the slices from the pod, although the pod lives. Never becomes False again.
        freed: other pods may have the positions. Never becomes False again.
        kind: the kind of request that they answer.
        claims: names of the pod's ResourceClaims that have the slices, where the allocations of these do not name them.
    """

    node: NodeName
    uid: PodUid
    namespace: str
    name: str
    slices: tuple[Slice, ...]
    amounts: Amounts = field(default_factory=dict)
    sent: bool = False
    requested: bool = False
    result: tuple[str, str] | None = None
    given_up: bool = False
    freed: bool = False
    kind: KindOfRequest = SLICES
    claims: tuple[str, ...] = ()

    @property
    def by_pod(self) -> bool:
        """True if the pod's own pin is the record: whole cards and shares have no entry in the node's object."""
        return self.kind.record is Record.PIN

    @property
    def in_object(self) -> bool:
        """True if the node's Instaslice object is the record."""
        return self.kind.record is Record.NODE

    @property
    def may_start(self) -> bool:
        """True if its pod may leave the gate: the request is recorded, or its pin will be the record."""
        return self.requested or self.by_pod

    @property
    def recorded(self) -> bool:
        """True if the node's object has, or may have, an entry of this allocation."""
        return self.sent or self.requested or self.result is not None

    @property
    def owner(self) -> str:
        """Returns the owning pod's name, for messages; :data:`DELETED_POD` if no record has its name."""
        return f"{self.namespace}/{self.name}" if self.name else DELETED_POD

    @property
    def deletion_requested(self) -> bool:
        """True if the record tells the agent to destroy the slices; it does so even if the record changes again."""
        return self.result is not None and self.result[0] == "deleting"

    @property
    def destroyed(self) -> bool:
        """True if the agent reports that the slices are destroyed."""
        return self.result is not None and self.result[1] == "deleted"


def is_short(allocation: Allocation, pod: PodInfo) -> bool:
    """True if a pod past the gate holds fewer whole cards or shares than it requests."""
    return allocation.by_pod and not pod.gated and len(allocation.slices) < len(pod.devices)


def will_never_run(pod: PodInfo | None) -> bool:
    """True if a pod will never use slices again; ``pod`` is None once it is gone.

    A pod that is being deleted and is bound to no node will never run, though a finalizer may keep the object for ever;
    a quota then no longer counts it.
    """
    return pod is None or pod.finished or (pod.terminating and not pod.node)


def is_wanted(allocation: Allocation, pod: PodInfo | None) -> bool:
    """True if the pod should still have these slices.

    A record without positions allocates nothing: the controller removes it, and the pod waits again. A pod past the
    gate may hold none of the whole cards that it requests, since others were faster.
    """
    return (bool(allocation.slices) or not allocation.in_object) and not allocation.given_up and not will_never_run(pod)


def next_step(allocation: Allocation, pod: PodInfo | None) -> AllocationStep:
    """Returns the next step by the table above; ``pod`` is None once it is gone."""
    if pod is None or not is_wanted(allocation, pod):
        return _next_release_step(allocation, lives=not will_never_run(pod))
    if not allocation.may_start:
        return AllocationStep.REQUEST
    return AllocationStep.UNGATE if pod.gated else AllocationStep.SETTLED


def _next_release_step(allocation: Allocation, *, lives: bool) -> AllocationStep:
    if not allocation.recorded:
        return AllocationStep.FORGET
    destroyed = allocation.destroyed or not allocation.slices or not allocation.in_object
    recorded = allocation.requested or allocation.result is not None
    if lives and recorded and not destroyed:
        return AllocationStep.WAIT if allocation.deletion_requested else AllocationStep.DELETING
    if allocation.requested or allocation.sent:
        return AllocationStep.DROP_REQUEST
    return AllocationStep.DROP_RESULT if destroyed else AllocationStep.WAIT


def make_request(allocation: Allocation) -> AllocationRequest:
    """Returns the entry of ``spec.podAllocationRequests``."""
    shown: dict[str, str | int] = {
        name: format_amount(name, allocation.amounts[name]) for name in _SHOWN if name in allocation.amounts
    }
    return AllocationRequest(
        profile=allocation.slices[0].profile,
        resources=RequestedResources(requests=shown),
        pod_ref=PodRef(namespace=allocation.namespace, name=allocation.name, uid=allocation.uid),
        slices=allocation.slices,
        claims=allocation.claims,
    )


def make_deleting_result(allocation: Allocation) -> AllocationResult:
    """Returns a new entry of ``status.podAllocationResults`` that tells the agent that the pod loses its slices."""
    status = AllocationStatus(allocation_status_controller="deleting")
    return make_result(allocation.uid, allocation.node, allocation.slices, status)


def reported_slices(resources: NodeResources, uid: PodUid) -> tuple[Slice, ...]:
    """Returns the slices that a node's agent made for a pod whose allocation is gone."""
    return tuple(
        Slice(
            id=device_id(each.gpu_uuid, each.profile, each.start),
            profile=each.profile,
            gpu_uuid=each.gpu_uuid,
            start=each.start,
            size=each.size,
        )
        for each in resources.foreign
        if each.pod_uid == uid
    )


def observe_record(allocation: Allocation, item: Instaslice) -> None:
    """Updates an allocation from the node's object."""
    allocation.requested = allocation.uid in item.spec.pod_allocation_requests
    allocation.sent = allocation.sent and not allocation.requested
    result = item.status.pod_allocation_results.get(allocation.uid)
    allocation.result = None if result is None else _states(result.allocation_status)


def _states(status: AllocationStatus) -> tuple[str, str]:
    return (status.allocation_status_controller, status.allocation_status_daemonset)


#: By UUID of a card its names, each with first memory slots; empty for all.
CardNames = Mapping[str, tuple[tuple[str, tuple[int, ...]], ...]]
#: Owner, in the fleet, of slots that are occupied without an allocation.
FOREIGN = "a slice that no record of Tessera explains"


class FleetInventory:
    """The cards and the slices on them.

    Attributes:
        fleet: the cards that placement plans on; has the nodes whose cards are given to on-demand slicing.
        geometries: shared geometries of cards.
    """

    def __init__(self) -> None:
        self.fleet = Fleet()
        #: Memory slots of all cards, by model.
        self.totals: Counter[str] = Counter()
        #: By kind of request and node, the cards that the kind has put there; none is empty.
        self._cards: dict[tuple[str, NodeName], Mapping[str, Geometry]] = {}
        self.geometries = CardGeometries()
        #: By node and UUID of a card, further names of its profiles, with the starts that requests choose by them.
        self.names: dict[NodeName, CardNames] = {}
        #: By node and UUID, the values of cards that demands compare (:attr:`.FleetNode.values`).
        self.values: dict[NodeName, Mapping[str, Mapping[str, str]]] = {}
        #: Nodes whose names or values have changed since their cards were put.
        self.renamed: set[NodeName] = set()

    def name_cards(self, node: NodeName, names: CardNames, values: Mapping[str, Mapping[str, str]]) -> bool:
        """Sets the further names and the values of a node's cards, from its next :meth:`rebuild` on; False if equal."""
        if names == self.names.get(node, {}) and values == self.values.get(node, {}):
            return False
        self.names[node], self.values[node] = names, values
        self.renamed.add(node)
        if not names:
            del self.names[node]
        if not values:
            del self.values[node]
        return True

    def rebuild(self, node: NodeName, resources: NodeResources, held: Iterable[Allocation]) -> Sequence[Allocation]:
        """Replaces a node's cards, with the allocations and foreign slices on them.

        Args:
            node: the node.
            resources: its cards and foreign slices.
            held: allocations whose slots are not free, the most important first.

        Returns:
            Allocations that collide with an earlier one, or whose card is missing.
        """
        self.renamed.discard(node)
        names = self.names.get(node, {})
        cards = self.geometries.of(resources)
        self.put_cards(SLICES, node, {gpu: _named(each, names.get(gpu, ())) for gpu, each in cards.items()})
        if node in self.fleet:
            self.fleet.node(node).values = self.values.get(node, {})
        collided = [allocation for allocation in held if not self.occupy(allocation)]
        for item in resources.foreign:
            self._occupy_foreign(node, item)
        return collided

    def put_cards(self, kind: KindOfRequest, node: NodeName, cards: Mapping[str, Geometry]) -> None:
        """Replaces the cards that a node has for a kind of request; all slots of the new ones are free."""
        for gpu, geometry in self._cards.pop((kind.name, node), {}).items():
            self.fleet.remove_card(node, gpu)
            self.totals[geometry.family] -= geometry.slots
            if not self.totals[geometry.family]:
                del self.totals[geometry.family]
        for gpu, geometry in cards.items():
            self.fleet.add_card(node, gpu, geometry)
            self.totals[geometry.family] += geometry.slots
        if cards:
            self._cards[kind.name, node] = cards

    def occupy(self, allocation: Allocation) -> bool:
        """Occupies an allocation's slots; False, with no change, if a slot is occupied or the card is missing."""
        placements = [_placement(allocation.node, item) for item in allocation.slices]
        try:
            self.fleet.occupy_all(placements, allocation.owner)
        except (UnknownCard, ValueError):
            return False
        return True

    def adopt_foreign(self, allocation: Allocation) -> bool:
        """Makes foreign slices those of an allocation.

        Returns False and changes nothing unless the agent reports each slice at exactly that position, and the position
        is legal on its card.
        """
        placements = {_placement(allocation.node, item) for item in allocation.slices}
        if len(placements) < len(allocation.slices) or not all(map(self._is_foreign, placements)):
            return False
        for each in placements:
            self.fleet.release(each.node, each.gpu, each.start)
        return self.occupy(allocation)

    def _is_foreign(self, placement: CardPlacement) -> bool:
        try:
            card = self.fleet.card(placement.node, placement.gpu)
        except UnknownCard:
            return False
        row = card.table.geometry.find(placement.profile)
        if row is None or row.size != placement.size or placement.start not in row.starts:
            return False
        found = card.allocations.get(placement.start)
        return found is not None and (found.placement, found.owner) == (placement, FOREIGN)

    def release(self, allocation: Allocation) -> bool:
        """Frees an allocation's slots; False if it held none (its cards are gone, or it collided)."""
        released = False
        for item in allocation.slices:
            released |= self._release(allocation, item)
        return released

    def _release(self, allocation: Allocation, item: Slice) -> bool:
        if allocation.node not in self.fleet:
            return False
        try:
            held = self.fleet.card(allocation.node, item.gpu_uuid).allocations.get(item.start)
        except UnknownCard:
            return False
        if held is None or held.owner != allocation.owner:
            return False
        self.fleet.release(allocation.node, item.gpu_uuid, item.start)
        return True

    def _occupy_foreign(self, node: NodeName, item: ForeignSlice) -> None:
        """Occupies the free slots of a foreign slice; one by one if an allocation already covers a part of it."""
        whole = CardPlacement(node, item.gpu_uuid, item.profile, item.start, item.size)
        if self._try_occupy(whole):
            return
        for slot in range(item.start, item.start + item.size):
            self._try_occupy(CardPlacement(node, item.gpu_uuid, "", slot, 1))

    def _try_occupy(self, placement: CardPlacement) -> bool:
        try:
            self.fleet.occupy(placement, FOREIGN)
        except (UnknownCard, PlaceOccupied, ValueError):
            return False
        return True


@lru_cache(maxsize=1024)
def _named(geometry: Geometry, names: tuple[tuple[str, tuple[int, ...]], ...]) -> Geometry:
    """Returns the geometry of a card with its names; alike cards share it."""
    rows = ((name, geometry.find(plain_profile(name)), starts) for name, starts in names)
    choices = [
        msgspec.structs.replace(row, name=row.name + name[len(plain_profile(name)) :], starts=kept, aliases=())
        for name, row, starts in rows
        if row is not None and (kept := tuple(each for each in row.starts if not starts or each in starts))
    ]
    return msgspec.structs.replace(geometry, choices=tuple(choices)) if choices else geometry


def _placement(node: NodeName, item: Slice) -> CardPlacement:
    return CardPlacement(node, item.gpu_uuid, item.profile, item.start, item.size)
