"""The slicer's whole state: its observations, its allocations, and its pending writes.

All of this state may be lost: a new process observes the same objects and comes to the same allocations.
"""

from tessera.api.instaslice import NodeResources
from tessera.api.names import NodeName, PodUid
from tessera.controller.cluster.cluster_state import ClusterState
from tessera.controller.filters.avoidance import NodeAvoidance
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.objects.resource_amounts import NodeUsage
from tessera.controller.slicing.allocation_table import AllocationTable
from tessera.controller.slicing.fleet_inventory import FleetInventory
from tessera.controller.slicing.instructions import Evict, RecordEvent, WriteKey
from tessera.placement.reasons import Reason


class SlicerState:
    """State that the lifecycle, the planner and the writes share. Only :class:`Slicer` and its parts change it."""

    def __init__(self) -> None:
        #: The cluster as observed.
        self.cluster = ClusterState()
        #: Nodes that owners of refused pods avoid. The slicer has no clock: an event ends each entry.
        self.avoidance = NodeAvoidance()

        # Allocations

        #: All allocations. A pod has at most one that is not given up.
        self.allocations = AllocationTable()
        #: The cards of the nodes in ``cards``. Each allocation that is not freed occupies its slots here.
        self.inventory = FleetInventory()
        #: Amounts of each node that pods and allocations hold besides slices; each pod counts on one node.
        self.usage = NodeUsage()
        #: Nodes with cards for on-demand slicing, and the resources that their object reports. None of them is in
        #: ``faults``.
        self.cards: dict[NodeName, NodeResources] = {}
        #: The profiles that each node of ``cards`` can make; has the same keys as ``cards``.
        self.profiles_by_node: dict[NodeName, frozenset[str]] = {}
        #: Nodes whose object breaks a rule, with the fault. Such a node gets no allocations, and the slicer writes
        #: nothing about its present ones: the last valid state counts until the object is right.
        self.faults: dict[NodeName, str] = {}

        # Pods

        #: Pods that wait for slices, with the reason once planning has refused them. None of them has a current
        #: allocation.
        self.waiting: dict[PodUid, Reason | None] = {}
        #: Waiting pods that are kept off a node by other pods or volumes. A subset of ``waiting``.
        self.dependent: set[PodUid] = set()
        #: Pods that cannot start where they have slices: the scheduler refuses them there, or they are bound and the
        #: node's agent is gone. Each has a current allocation.
        self.refused_pods: set[PodUid] = set()
        #: Pods that the API server refused to ungate, in their state then; a changed pod is tried again.
        self.denied: dict[PodUid, PodInfo] = {}
        #: Pods that lost their slices, or will not start on their node, with the text of their condition.
        self.withdrawn: dict[PodUid, str] = {}
        #: Kind of the last event about each pod, so that no event is repeated.
        self.last_event: dict[PodUid, str] = {}

        # Writes

        #: Keys of popped writes whose answer, or the pause after it, is still pending.
        self.busy: set[WriteKey] = set()
        #: Nodes whose allocations may need a write; emptied when the writes are popped.
        self.dirty_nodes: set[NodeName] = set()
        #: Pods whose condition may need a write; emptied when the writes are popped.
        self.pods_to_report: set[PodUid] = set()
        #: Pods to ungate for the scheduler, since only nodes with a fixed layout serve them; emptied likewise.
        self.pods_to_open: set[PodUid] = set()
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
        #: True once the first decision has looked for objects without a node; this happens once.
        self.swept = False
