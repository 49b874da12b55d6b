"""Step 1: takes in what has changed in the cluster, in steps of bounded length, and brings allocations in line with it.

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
from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet

from tessera.api.instaslice import Instaslice, find_misfit, recorded_slices
from tessera.api.names import NodeName, PodUid
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.slicing.cycle.observe import Observer
from tessera.controller.slicing.cycle.settle import Allocations
from tessera.controller.slicing.kinds import Kinds
from tessera.controller.slicing.proposals import Proposer
from tessera.controller.slicing.state.allocation import Allocation
from tessera.controller.slicing.state.events import (
    InstasliceDeleted,
    InstasliceObserved,
    PodDeleted,
    SlicerEvent,
    TimePassed,
)
from tessera.controller.slicing.state.slicer_state import SlicerState
from tessera.limits import BATCH_PODS
from tessera.mig.names import parse_profile_name, plain_profile

#: Most changes: changed nodes and pods that one step of the controller takes in if they are many, and the pods of the
#: last node. Some 25 ms; a start and the first use of whole cards change everything, and other work goes on between
#: steps.
ABSORBED_CHANGES = 250


class Intake:
    """Takes in events, and brings the state in line with changed nodes and pods.

    Args:
        state: the slicer's state.
        observer: takes in an event.
        allocations: begins and ends allocations.
        proposers: observe changed pods.
        kinds: know what nodes have and what pods hold, and bring their estimates up to date.

    Attributes:
        is_done: True if the last step took in all changes.
        has_begun: True once a step was taken.
    """

    def __init__(
        self,
        state: SlicerState,
        observer: Observer,
        allocations: Allocations,
        proposers: Sequence[Proposer],
        kinds: Kinds,
    ) -> None:
        self._state = state
        self._cluster = state.cluster
        self._observer = observer
        self._allocations = allocations
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
        for kind in self._kinds.having["prepare"] if nodes else ():
            kind.prepare()
        self._observer.reread()
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
        self._observer.reread()
        self._cluster.changed_pods -= pods
        self._absorb_pods(pods)
        for kind in self._kinds.having["prepare"]:
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
            self._absorb_node(node)
        self._recount()
        self._nodes.update(nodes)

    def _absorb_pods(self, pods: Collection[PodUid]) -> None:
        for uid in sorted(pods):
            self._absorb_pod(uid)
            pod = self._cluster.pods.get(uid)
            for proposer in self._followers:
                if pod is None or getattr(pod, proposer.follows):
                    proposer.observe(uid)
        for kind in self._kinds.having["refresh"]:
            kind.refresh()

    # One node, one pod

    def _absorb_node(self, node: NodeName) -> None:
        """Brings allocations and cards of one node in line with its object and its state."""
        item = self._cluster.objects.get(node)
        fault = self._fault(node, item)
        if fault:
            self._state.faults[node] = fault
        else:
            self._state.faults.pop(node, None)
        new_records = not fault and self._absorb_records(node, item)
        made: frozenset[str] = frozenset()
        for kind in self._kinds.having["absorb_node"]:
            for allocation in kind.absorb_node(node, renewed=new_records):
                self._allocations.give_up(allocation)
            made |= kind.profiles(node)
        if made:
            self._state.profiles_by_node[node] = made
        else:
            self._state.profiles_by_node.pop(node, None)
        self._state.dirty_nodes.add(node)
        if new_records:
            self._observer.reread()  # what a pod asks for may depend on what it has
        for allocation in self._state.allocations.on(node):
            self._check_allocation(allocation)
            self._allocations.follow(allocation.uid)

    def _fault(self, node: NodeName, item: Instaslice | None) -> str:
        """Returns the rule that a node's object breaks; empty if it breaks none, or there is no object."""
        error = self._cluster.unreadable.get(node)
        if error is not None or item is None:
            return error or ""
        return find_misfit(item) or self._state.inventory.geometries.fault(item.status.node_resources)

    def _absorb_records(self, node: NodeName, item: Instaslice | None) -> bool:
        """Adopts an object's entries as allocations; returns True if one of them is new to this process."""
        new_records = False
        if item is not None:
            for uid in _recorded_uids(item):
                if self._state.allocations.get(node, uid) is None:
                    self._state.allocations.add(_adopt_record(node, uid, item, self._cluster.pods.get(uid)))
                    self._cluster.changed_pods.add(uid)
                    new_records = True
        for allocation in self._state.allocations.on(node):
            if allocation.in_object:
                self._allocations.note_record(allocation, item)
            else:
                self._allocations.settle(allocation, gone=False)
        return new_records

    def _recount(self) -> None:
        """After nodes were absorbed, drops what is counted anew; a pod behind the gate waits again."""
        for kind in self._kinds.having["recount"]:
            for allocation in kind.recount():
                pod = self._cluster.pods.get(allocation.uid)
                self._allocations.drop(allocation)
                self._cluster.changed_pods.add(allocation.uid)
                if pod is not None and pod.gated:
                    self._allocations.follow(pod.uid)

    def _absorb_pod(self, uid: PodUid) -> None:
        """Updates a pod's allocations, and the set of waiting pods, from the pod's present state."""
        pod = self._cluster.pods.get(uid)
        known = self._state.pods.get(uid)
        if known is not None and known.denied != pod:
            known.denied = None
        if pod is not None:
            self._keep_one_allocation(pod)
            self._adopt(pod)
            self._report_fault(pod)
        for allocation in self._state.allocations.of(uid):
            self._allocations.settle(allocation, gone=False)
            self._state.dirty_nodes.add(allocation.node)
            self._check_allocation(allocation)
        if pod is None or not pod.gated:
            self._state.pods.handed_over.discard(uid)
        self._allocations.report_condition(uid)
        self._state.pods.forget_refusal(uid)
        self._allocations.follow(uid)
        self._allocations.count_usage(uid)
        if pod is not None and pod.finished and not self._state.allocations.of(uid):
            self._cluster.drop_pod(uid)
            self._cluster.changed_pods.discard(uid)

    def _adopt(self, pod: PodInfo) -> None:
        """Begins an allocation for what a pod holds without one."""
        for kind in self._kinds.having["outgrown"]:
            outgrown = kind.outgrown(pod)
            if outgrown is not None:
                self._allocations.drop(outgrown)
        for kind in self._kinds.having["refused"]:
            refused = kind.refused(pod)
            if refused is not None:
                self._allocations.give_up(refused)
        for kind in self._kinds.having["adopt"]:
            found = kind.adopt(pod)
            if found is not None:
                self._allocations.begin(found)

    def _report_fault(self, pod: PodInfo) -> None:
        if pod.fault and pod.is_held and (one := self._state.pods.record(pod.uid)).last_event != pod.fault:
            one.last_event = pod.fault
            self._state.add_event(pod, "SliceRefused", pod.fault, warning=True)

    def _keep_one_allocation(self, pod: PodInfo) -> None:
        """Keeps one of several allocations to a pod: the one on its node, else the most advanced one."""
        live = [one for one in self._state.allocations.of(pod.uid) if not one.given_up]
        home = self._cluster.required_node(pod)
        live.sort(key=lambda one: (one.node != home, one.result is None, not one.requested))
        for index, allocation in enumerate(live):
            if index or (home is not None and allocation.node != home):
                self._allocations.give_up(allocation)

    def _check_allocation(self, allocation: Allocation) -> None:
        """Gives up an allocation whose pod, not bound yet, could not run on the node any more."""
        pod = self._cluster.pods.get(allocation.uid)
        if pod is None or allocation.given_up:
            return
        if self._state.is_withdrawn(pod):
            self._allocations.give_up(allocation)  # an earlier process began this
            return
        if not pod.is_held or ("pod", pod.uid) in self._state.busy:
            return
        able = self._cluster.index.open_to(pod.constraints) & self._cluster.index.mask_of(allocation.node)
        faulty = allocation.node in self._state.faults and allocation.in_object
        if pod.terminating or (allocation.in_object and not allocation.slices) or not able or faulty:
            self._allocations.give_up(allocation)


def _adopt_record(node: NodeName, uid: PodUid, item: Instaslice, pod: PodInfo | None = None) -> Allocation:
    """Returns the allocation that a record of the node's object describes.

    A result without a request names neither its pod nor the profile of a single slice. A living pod has both.
    """
    request = item.spec.pod_allocation_requests.get(uid)
    result = item.status.pod_allocation_results.get(uid)
    if request is not None:
        namespace, name = request.pod_ref.namespace, request.pod_ref.name
    else:
        namespace, name = (pod.namespace, pod.name) if pod is not None else ("", "")
    return Allocation(
        node=node,
        uid=uid,
        namespace=namespace,
        name=name,
        slices=tuple(recorded_slices(request, result, _single_profile(pod))),
        amounts=pod.amounts if pod is not None else {},
        claims=request.claims if request is not None else (),
    )


def _single_profile(pod: PodInfo | None) -> str:
    """Returns NVIDIA's name of the profile if a pod asks for one slice; empty for any other pod."""
    if pod is None or len(pod.profiles) != 1:
        return ""
    try:
        return str(parse_profile_name(plain_profile(pod.profiles[0])))
    except ValueError:  # no card has such a slice
        return ""


def _recorded_uids(item: Instaslice) -> Mapping[PodUid, None]:
    """Returns every pod that has an entry in the object, in order."""
    both = [*item.spec.pod_allocation_requests, *item.status.pod_allocation_results]
    return dict.fromkeys(PodUid(uid) for uid in both)
