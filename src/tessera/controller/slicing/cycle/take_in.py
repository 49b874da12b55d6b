"""Step 1: takes in what has changed in the cluster, in steps of bounded length.

A start, or the first use of whole cards, changes everything at once, which would hold the controller for a second and
more. Rules:

- As many changes as one step plans are taken in at once: nodes first, then pods.
- Of more, each step takes some nodes with their pods, so no node ever looks emptier than it is. Pods without a node,
  which may wait, come last. Nothing is planned or written before the step after that.
- Where many have changed again by then, they are taken in by steps once more, and events that come meanwhile are held.
  So a step plans at last, however fast the cluster changes. The slicer may hold them: a slow watch delays events in the
  same way.

The number of held events has no limit of its own. It is bounded by what comes in a few steps: with 5,000 nodes and
20,000 pods 100 at most. Each event is an object that the informers keep anyway, or the outcome of a write, of which
each key has one in flight.
"""

from collections import deque
from collections.abc import Collection, Sequence
from collections.abc import Set as AbstractSet

from tessera.api.names import NodeName, PodUid
from tessera.controller.slicing.cycle.absorb import Absorber
from tessera.controller.slicing.cycle.observe import Observer
from tessera.controller.slicing.kinds.request_kind import Kinds
from tessera.controller.slicing.planning.proposals import Proposer
from tessera.controller.slicing.state.events import (
    InstasliceDeleted,
    InstasliceObserved,
    PodDeleted,
    SlicerEvent,
    TimePassed,
)
from tessera.controller.slicing.state.slicer_state import SlicerState
from tessera.limits.planning import ABSORBED_CHANGES, BATCH_PODS


class Intake:
    """Takes in events, and brings the state in line with changed nodes and pods.

    Args:
        state: the slicer's state.
        observer: takes in an event.
        absorber: takes in a changed node or pod.
        proposers: observe changed pods.
        kinds: bring their estimates up to date.

    Attributes:
        is_done: True if the last step took in all changes.
        has_begun: True once a step was taken.
    """

    def __init__(
        self,
        state: SlicerState,
        observer: Observer,
        absorber: Absorber,
        proposers: Sequence[Proposer],
        kinds: Kinds,
    ) -> None:
        self._state = state
        self._cluster = state.cluster
        self._observer = observer
        self._absorber = absorber
        self._followers = [each for each in proposers if each.follows]
        self._kinds = kinds
        self.is_done = True
        self.has_begun = False
        #: Changes that later steps take in, in order: a node and its changed pods. The node is "" for pods without one.
        self._left: deque[tuple[NodeName, list[PodUid]]] = deque()
        #: How often changes were divided since the last step that took in all.
        self._divisions = 0
        #: Nodes that were taken in since the last step that took in all.
        self._nodes: set[NodeName] = set()
        #: The held events, the oldest first.
        self._held: list[SlicerEvent] = []
        #: Pods, and nodes of Instaslice objects, whose deletion is among them, if nothing follows on it.
        self._gone_pods: set[PodUid] = set()
        self._gone_objects: set[NodeName] = set()

    @property
    def are_few(self) -> bool:
        """True if one step can take in all that has changed since the last one."""
        return len(self._cluster.changed_nodes) <= ABSORBED_CHANGES and len(self._cluster.changed_pods) <= BATCH_PODS

    @property
    def holds_events(self) -> bool:
        """True if events wait until a step has planned."""
        return bool(self._held)

    def knows_pod(self, uid: PodUid) -> bool:
        """True if a pod was observed, and not its deletion."""
        return uid in self._cluster.pods and uid not in self._gone_pods

    def knows_object(self, node: NodeName) -> bool:
        """True if the Instaslice object of a node was observed, and not its deletion."""
        return node in self._cluster.objects and node not in self._gone_objects

    def put(self, event: SlicerEvent) -> None:
        """Takes in an event, or holds it while many changes are taken in by steps for a second time."""
        if (self._divisions > 1 or self._held) and not isinstance(event, TimePassed):
            self._hold(event)
        else:
            self._observer.observe(event)

    def _hold(self, event: SlicerEvent) -> None:
        self._held.append(event)
        match event:
            case PodDeleted(uid):
                self._gone_pods.add(uid)
            case InstasliceDeleted(node):
                self._gone_objects.add(node)
            case InstasliceObserved(item):
                self._gone_objects.discard(NodeName(item.metadata.name))
            case _:
                pass

    def take_in(self) -> AbstractSet[NodeName] | None:
        """Takes in all changes, or some of many.

        Returns:
            The nodes that have changed since the last step that took in all; None if changes are left.
        """
        if self._held and self._divisions <= 1:
            held, self._held = self._held, []
            self._gone_pods.clear()
            self._gone_objects.clear()
            for event in held:
                self._observer.observe(event)
        self._observer.find_orphans()
        self.has_begun = True
        self.is_done = not self._left and self.are_few
        if not self.is_done:
            self._take_part()
            return None
        self._divisions = 0
        nodes, self._cluster.changed_nodes = self._cluster.changed_nodes, set()
        self._absorb_nodes(nodes)
        changed, self._cluster.changed_pods = self._cluster.changed_pods, set()
        self._absorb_pods(changed)
        found, self._nodes = self._nodes, set()
        return found

    def _take_part(self) -> None:
        if not self._left:
            self._divisions += 1
            self._left = self._divide()
        first: dict[NodeName, None] = {}
        pods: set[PodUid] = set()
        while self._left and len(first) + len(pods) < ABSORBED_CHANGES:
            node, there = self._left.popleft()
            if node:
                first[node] = None
            pods.update(there)
        self._absorb_nodes(first)
        self._cluster.changed_pods -= pods
        self._absorb_pods(pods)
        for kind in self._kinds.active:
            kind.prepare()

    def _divide(self) -> deque[tuple[NodeName, list[PodUid]]]:
        """Takes the changes over: each node with its changed pods, then one by one the pods without a changed node."""
        nodes, self._cluster.changed_nodes = self._cluster.changed_nodes, set()
        changed, self._cluster.changed_pods = self._cluster.changed_pods, set()
        there: dict[NodeName, list[PodUid]] = {node: [] for node in sorted(nodes)}
        others: list[tuple[NodeName, list[PodUid]]] = []
        for uid in sorted(changed):
            pod = self._cluster.pods.get(uid)
            home = pod.node or self._cluster.required_node(pod) if pod is not None else None
            if home in there:
                there[home].append(uid)
            else:
                others.append((NodeName(""), [uid]))
        return deque([*there.items(), *others])

    def _absorb_nodes(self, nodes: Collection[NodeName]) -> None:
        if nodes:
            self._state.serving_nodes.clear()
        for node in sorted(nodes):
            self._absorber.absorb_node(node)
        self._absorber.recount()
        self._nodes.update(nodes)

    def _absorb_pods(self, pods: Collection[PodUid]) -> None:
        for uid in sorted(pods):
            self._absorber.absorb_pod(uid)
            pod = self._cluster.pods.get(uid)
            for proposer in self._followers:
                if pod is None or getattr(pod, proposer.follows):
                    proposer.observe(uid)
        for kind in self._kinds.active:
            kind.refresh()
