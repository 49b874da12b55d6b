"""The slicer's whole state: its observations, its allocations, and its pending writes.

All of this state may be lost: a new process observes the same objects and comes to the same allocations.
"""

from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence, ValuesView
from dataclasses import replace

from tessera.api.instaslice import NodeResources
from tessera.api.names import LAST_GATES, NodeName, PodUid
from tessera.api.pod_annotations import Gang
from tessera.controller.cluster.cluster_state import ClusterState
from tessera.controller.cluster.filters import NodeAvoidance
from tessera.controller.objects.node_info import AgentState
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.objects.resource_amounts import NodeUsage
from tessera.controller.slicing.state.allocation import Allocation, FleetInventory
from tessera.controller.slicing.state.device_inventory import DeviceDemand, DeviceInventory
from tessera.controller.slicing.state.device_ratings import DeviceRatings
from tessera.controller.slicing.state.instructions import Evict, RecordEvent, WriteKey
from tessera.controller.slicing.state.node_records import RecordedMove, Reservation
from tessera.controller.slicing.state.queue_ledger import QueueLedger
from tessera.controller.slicing.state.waiting_pod import WaitingAges
from tessera.controller.slicing.state.waiting_pods import WaitingPods
from tessera.placement.cards import CardPlacement
from tessera.reasons.reason import OldPods

#: Most pods that are counted for one gang, those that succeeded included. About twice the largest size; pods beyond are
#: planned one by one.
GANG_PODS = 1_000


class GangTable:
    """The gangs of all pods, and which of them have changed.

    A pod that succeeded counts as long as its object exists: a Job whose pods end one after another is not incomplete.
    A failed pod does not: its gang waits for the pod that replaces it. A PodGroup states the size of a gang whose pods
    do not. While it is not known whether the cluster has such objects, and where one is missing, the size is unknown
    (0), and the gang waits. In a cluster without the kind such pods have no gang.

    Attributes:
        known: by key of a gang its pods, True for one that succeeded; no dict is empty.
    """

    def __init__(self) -> None:
        #: By pod, its gang. The pods are those of ``known``.
        self._gangs: dict[PodUid, Gang] = {}
        self.known: dict[str, dict[PodUid, bool]] = {}
        #: Keys of gangs of which a pod or the size has changed; the next decision empties it.
        self.changed: set[str] = set()
        #: By key of a gang, the size that its PodGroup states.
        self._sizes: dict[str, int] = {}
        #: False once it is known that the cluster has no PodGroups.
        self._may_have_groups = True

    def observe(self, pod: PodInfo) -> None:
        """Takes in a pod as it is now; pods beyond the bound of a gang are taken as pods without one."""
        known = self._gangs.get(pod.uid)
        if known is not None and (pod.gang is None or pod.gang.key != known.key):
            self.drop(pod.uid)
        if pod.gang is None:
            return
        members = self.known.get(pod.gang.key, {})
        if pod.uid in members or len(members) < GANG_PODS:
            self.known.setdefault(pod.gang.key, members)[pod.uid] = pod.succeeded
            self._gangs[pod.uid] = pod.gang
            self.changed.add(pod.gang.key)

    def drop(self, uid: PodUid) -> None:
        """Forgets a pod that is gone; an unknown one is no error."""
        gang = self._gangs.pop(uid, None)
        if gang is not None:
            self.changed.add(gang.key)
            del self.known[gang.key][uid]
            if not self.known[gang.key]:
                del self.known[gang.key]

    def gang_of(self, uid: PodUid) -> Gang | None:
        """Returns the gang of a pod; None for a pod that starts by itself."""
        gang = self._gangs.get(uid)
        if gang is None or (gang.leads and len(self.known[gang.key]) == 1):
            return None
        if gang.size:
            return gang
        size = self._sizes.get(gang.key, 0 if self._may_have_groups else 1)
        return None if size == 1 else replace(gang, size=size)

    def put_group(self, key: str, size: int | None) -> None:
        """Takes in the size that a PodGroup states; None once it is gone."""
        if size is None:
            self._sizes.pop(key, None)
        else:
            self._sizes[key] = size
        self.changed.add(key)

    def note_groups(self, *, served: bool) -> None:
        """Notes whether the cluster has PodGroups, of which all have been listed."""
        if self._may_have_groups != served:
            self._may_have_groups = served
            self.changed |= {gang.key for gang in self._gangs.values() if not gang.size}

    def members(self, key: str) -> Sequence[PodUid]:
        """Returns the pods of a gang."""
        return tuple(self.known.get(key, ()))

    def has_succeeded(self, uid: PodUid) -> bool:
        """True if a pod of a gang has succeeded."""
        gang = self._gangs.get(uid)
        return gang is not None and self.known[gang.key][uid]


class AllocationTable:
    """All allocations, by node and by pod; at most one per (node, pod).

    At most one allocation of a pod is current; its other allocations are being taken back. So a pod can be placed
    elsewhere while the controller still waits for its old slices on another node.
    """

    def __init__(self) -> None:
        #: The same allocations by both keys. No inner dict is empty.
        self._by_node: dict[NodeName, dict[PodUid, Allocation]] = {}
        self._by_pod: dict[PodUid, dict[NodeName, Allocation]] = {}
        #: The same by node and UUID of each card with a slice.
        self._by_card: dict[tuple[NodeName, str], dict[PodUid, Allocation]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by_node.values()))

    def __iter__(self) -> Iterator[Allocation]:
        for entries in self._by_node.values():
            yield from entries.values()

    def get(self, node: NodeName, uid: PodUid) -> Allocation | None:
        """Returns the allocation to a pod on a node."""
        return self._by_node.get(node, {}).get(uid)

    def on(self, node: NodeName) -> Sequence[Allocation]:
        """Returns the present allocations on a node."""
        return tuple(self._by_node.get(node, {}).values())

    def on_card(self, node: NodeName, gpu: str) -> Iterable[Allocation]:
        """Returns the present allocations with a slice on a card."""
        return self._by_card.get((node, gpu), {}).values()

    def at(self, placement: CardPlacement) -> Allocation | None:
        """Returns the allocation whose slice begins at a placement; None if no record explains what is there."""
        for one in self._by_node.get(NodeName(placement.node), {}).values():
            if any((each.gpu_uuid, each.start) == (placement.gpu, placement.start) for each in one.slices):
                return one
        return None

    def cards_of(self, node: NodeName, uid: PodUid) -> Sequence[str]:
        """Returns the UUIDs of the cards of a pod's slices on a node, one for each slice."""
        found = self.get(node, uid)
        return [each.gpu_uuid for each in found.slices] if found is not None else ()

    def of(self, uid: PodUid) -> Sequence[Allocation]:
        """Returns the present allocations to a pod."""
        return tuple(self._by_pod.get(uid, {}).values())

    def current_of(self, uid: PodUid) -> Allocation | None:
        """Returns the current allocation to a pod: the one that is not being taken back."""
        return next((one for one in self._by_pod.get(uid, {}).values() if not one.given_up), None)

    def add(self, allocation: Allocation) -> None:
        """Adds an allocation.

        Raises:
            ValueError: the pod has one on this node.
        """
        entries = self._by_node.setdefault(allocation.node, {})
        if allocation.uid in entries:
            raise ValueError(f"pod {allocation.owner} has a promise on node {allocation.node} already")
        entries[allocation.uid] = allocation
        self._by_pod.setdefault(allocation.uid, {})[allocation.node] = allocation
        for each in allocation.slices:
            self._by_card.setdefault((allocation.node, each.gpu_uuid), {})[allocation.uid] = allocation

    def remove(self, allocation: Allocation) -> None:
        """Removes an allocation; one that is not in the table is no error."""
        self._by_node.get(allocation.node, {}).pop(allocation.uid, None)
        if not self._by_node.get(allocation.node):
            self._by_node.pop(allocation.node, None)
        self._by_pod.get(allocation.uid, {}).pop(allocation.node, None)
        if not self._by_pod.get(allocation.uid):
            self._by_pod.pop(allocation.uid, None)
        for card in {(allocation.node, each.gpu_uuid) for each in allocation.slices}:
            entries = self._by_card.get(card, {})
            entries.pop(allocation.uid, None)
            if not entries:
                self._by_card.pop(card, None)


class Reservations(MutableMapping[PodUid, Reservation]):
    """Reservations by pod, and by node.

    Attributes:
        kept: those that pods have left to the next ones of their owners, which have not come.
        spare: spare slots of queues.
        changed: nodes of which reservations came or ended; the planner empties it.
    """

    def __init__(self) -> None:
        self.kept: dict[PodUid, Reservation] = {}
        self.spare: dict[PodUid, Reservation] = {}
        self.changed: set[NodeName] = set()
        self._all: dict[PodUid, Reservation] = {}
        #: All by node; no inner dict is empty.
        self._by_node: dict[NodeName, dict[PodUid, Reservation]] = {}

    def __getitem__(self, uid: PodUid) -> Reservation:
        return self._all[uid]

    def __iter__(self) -> Iterator[PodUid]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def __contains__(self, uid: object) -> bool:
        return uid in self._all

    def values(self) -> ValuesView[Reservation]:
        """Returns the reservations."""
        return self._all.values()

    def __setitem__(self, uid: PodUid, one: Reservation) -> None:
        if uid in self._all:
            del self[uid]
        self._all[uid] = one
        self._by_node.setdefault(one.node, {})[uid] = one
        self.changed.add(one.node)
        if one.kept_for is not None:
            (self.spare if one.is_spare else self.kept)[uid] = one

    def __delitem__(self, uid: PodUid) -> None:
        node = self._all.pop(uid).node
        del self._by_node[node][uid]
        if not self._by_node[node]:
            del self._by_node[node]
        self.changed.add(node)
        self.kept.pop(uid, None)
        self.spare.pop(uid, None)

    def on(self, node: NodeName) -> Iterable[Reservation]:
        """Returns the reservations on a node."""
        return self._by_node.get(node, {}).values()


class SlicerState:
    """State that the lifecycle, the planner and the writes share. Only :class:`Slicer` and its parts change it.

    Args:
        preference_price: what preferences may cost, see :class:`~tessera.placement.demand.Preferences`.
    """

    def __init__(self, preference_price: float = 0.0) -> None:
        self.preference_price = preference_price
        #: The cluster as observed.
        self.cluster = ClusterState()
        #: Nodes that owners of refused pods avoid. The slicer has no clock: an event ends each entry.
        self.avoidance = NodeAvoidance()

        # Allocations

        #: All allocations. A pod has at most one that is not given up.
        self.allocations = AllocationTable()
        #: The cards of the nodes in ``cards``. Each allocation that is not freed occupies its slots here.
        self.inventory = FleetInventory()
        #: Whole cards and shares, in the same fleet.
        self.devices = DeviceInventory(self.inventory)
        #: What each queue holds.
        self.ledger = QueueLedger(self.cluster.queues)
        #: Amounts of each node that pods and allocations hold besides slices; each pod counts on one node.
        self.usage = NodeUsage()
        #: The nodes with whole cards and shares, ranked for pods.
        self.ratings = DeviceRatings(
            self.inventory.fleet, self.devices, self.cluster.index, self.cluster.nodes, self.usage.used
        )
        #: The pods whose requests the ratings go by.
        self.device_demand = DeviceDemand(self.ratings)
        #: Nodes with cards for on-demand slicing, and the resources that their object reports. None of them is in
        #: ``faults``.
        self.cards: dict[NodeName, NodeResources] = {}
        #: The profiles that each node of ``cards`` can make, and the resources of devices; has no other keys than nodes
        #: with cards or devices.
        self.profiles_by_node: dict[NodeName, frozenset[str]] = {}
        #: Nodes whose object breaks a rule, with the fault. Such a node gets no allocations, and the slicer writes
        #: nothing about its present ones: the last valid state counts until the object is right.
        self.faults: dict[NodeName, str] = {}

        # Pods

        #: For how long each waiting pod has competed for room.
        self.ages = WaitingAges()
        #: The pods of each gang.
        self.gangs = GangTable()
        #: The pods that Tessera decides about, each with its state.
        self.pods = WaitingPods(self.cluster, self.ledger.relieved)
        #: The same object as that of ``pods``: the waiting pods.
        self.waiting = self.pods.waiting
        #: Slots that are kept for waiting pods; each is of a pod that waits, until the next decision.
        self.reservations = Reservations()
        #: True if a reservation may have to be made, moved or ended.
        self.reservations_due = False
        #: Moves of the last hour, by the moved pod's node; no tuple is empty.
        self.moves: dict[NodeName, tuple[RecordedMove, ...]] = {}
        #: Waiting pods whose room is held by old pods of their own Deployment, with what happens to these.
        self.updates: dict[PodUid, OldPods] = {}
        #: Present time, seconds since 1970; 0 while unknown.
        self.now = 0.0
        #: The same by a clock that never goes back, seconds.
        self.monotonic = 0.0
        #: Gates whose owners exist and go after Tessera; of other owners Tessera waits for the gates.
        self.last_gates = frozenset(LAST_GATES)
        #: When leases are expected to end, seconds since 1970; only of pods that exist, after the last change of it.
        self.expected_ends: dict[PodUid, float] = {}

        # Writes

        #: Keys of popped writes whose answer, or the pause after it, is still pending.
        self.busy: set[WriteKey] = set()
        #: Nodes whose allocations may need a write; emptied when the writes are popped.
        self.dirty_nodes: set[NodeName] = set()
        #: Pods whose condition may need a write; emptied when the writes are popped.
        self.pods_to_report: set[PodUid] = set()
        #: Pods to evict; emptied likewise.
        self.evictions: dict[PodUid, Evict] = {}
        #: Events to record; emptied likewise.
        self.events: list[RecordEvent] = []
        #: Text of each node's condition as this process last wrote it; before that, the node's own condition counts.
        self.reported_objects: dict[NodeName, str] = {}

        # Memos

        #: For tuples of profiles, the masks of nodes that can cut them and of nodes that have them in a fixed layout.
        #: Emptied when a node changes.
        self.serving_nodes: dict[tuple[str, ...], tuple[int, int]] = {}
        #: Memory slots of all cards by model, as the last decision counted them.
        self.counted_totals: Mapping[str, int] = {}

    @property
    def may_take_back(self) -> bool:
        """True if slots are kept for pods, queues or gangs, which may have to give them back, or if they should be."""
        return bool(self.reservations or self.ledger.spares or self.gangs.known or self.gangs.changed)

    @property
    def is_due(self) -> bool:
        """True if something has changed on which no decision has acted."""
        changed = self.cluster.changed_nodes or self.cluster.changed_pods or self.gangs.changed
        if changed or self.reservations_due or not self.waiting:
            return bool(changed or self.reservations_due)
        depends = self.cluster.dependencies_changed and (
            self.pods.limited or any(one.dependent for one in self.waiting.values())
        )
        return bool(self.pods.is_relief_due or depends or self.pods.are_due)

    # What has become of the slices that a pod was promised

    def agent_is_down(self, node: NodeName) -> bool:
        """True if a node's agent is known to be down."""
        facts = self.cluster.nodes.get(node)
        return facts is not None and facts.agent is AgentState.DOWN

    def is_withdrawn(self, pod: PodInfo) -> bool:
        """True if the slices of a pod were taken back and the scheduler has still not bound it."""
        return not pod.gated and not pod.node and self.is_told(pod)

    def is_told(self, pod: PodInfo) -> bool:
        """True if the pod's condition says, or is about to say, that its slices were taken back."""
        one = self.pods.get(pod.uid)
        return pod.slices_withdrawn or (one is not None and bool(one.told))

    def has_lost_its_turn(self, pod: PodInfo) -> bool:
        """True if a pod was bound after its slices had been taken back, and holds none of them any more."""
        waits = pod.unstarted or (bool(pod.node and pod.devices) and not pod.started)
        return not pod.terminating and waits and self.is_told(pod) and not self.allocations.of(pod.uid)

    def is_placed_here(self, pod: PodInfo) -> bool:
        """True if Tessera has pinned the pod, and its namespace is managed.

        In other namespaces the mark counts for nothing: whoever may change pods there could write it.
        """
        return pod.pinned and self.cluster.is_managed(pod.namespace)

    # Changes

    def expect_ends(self, ends: Mapping[PodUid, float]) -> None:
        """Notes when leases are expected to end, and forgets those of pods that are gone."""
        known = {**self.expected_ends, **ends}
        self.expected_ends = {uid: end for uid, end in known.items() if uid in self.cluster.pods}

    def add_event(self, pod: PodInfo, reason: str, message: str, *, warning: bool = False) -> None:
        """Queues an Event on a pod."""
        self.events.append(
            RecordEvent(
                uid=pod.uid, namespace=pod.namespace, name=pod.name, reason=reason, message=message, warning=warning
            )
        )
