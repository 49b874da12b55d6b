"""Step 1, for each changed node and pod: brings allocations and pods in line with it."""

from tessera.api.instaslice import Instaslice, find_misfit
from tessera.api.names import NodeName, PodUid
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.slicing.kinds.request_kind import Kinds
from tessera.controller.slicing.planning.allocations import Allocations
from tessera.controller.slicing.state.allocation import Allocation, adopt_record, recorded_uids
from tessera.controller.slicing.state.slicer_state import SlicerState


class Absorber:
    """Absorbs changed nodes and pods. It has no state of its own.

    Args:
        state: the slicer's state.
        allocations: begins and ends allocations.
        kinds: know what nodes have, and what pods hold.
    """

    def __init__(self, state: SlicerState, allocations: Allocations, kinds: Kinds) -> None:
        self._state = state
        self._kinds = kinds
        self._cluster = state.cluster
        self._allocations = allocations

    def absorb_node(self, node: NodeName) -> None:
        """Brings allocations and cards of one node in line with its object and its state."""
        item = self._cluster.objects.get(node)
        fault = self._fault(node, item)
        if fault:
            self._state.faults[node] = fault
        else:
            self._state.faults.pop(node, None)
        new_records = not fault and self._absorb_records(node, item)
        made: frozenset[str] = frozenset()
        for kind in self._kinds.active:
            for allocation in kind.absorb_node(node, renewed=new_records):
                self._allocations.give_up(allocation)
            made |= kind.profiles(node)
        if made:
            self._state.profiles_by_node[node] = made
        else:
            self._state.profiles_by_node.pop(node, None)
        self._state.dirty_nodes.add(node)
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
            for uid in recorded_uids(item):
                if self._state.allocations.get(node, uid) is None:
                    self._state.allocations.add(adopt_record(node, uid, item, self._cluster.pods.get(uid)))
                    self._cluster.changed_pods.add(uid)
                    new_records = True
        for allocation in self._state.allocations.on(node):
            if allocation.in_object:
                self._allocations.note_record(allocation, item)
            else:
                self._allocations.settle(allocation, gone=False)
        return new_records

    def recount(self) -> None:
        """After nodes were absorbed, drops what is counted anew; a pod behind the gate waits again."""
        for kind in self._kinds.active:
            for allocation in kind.recount():
                pod = self._cluster.pods.get(allocation.uid)
                self._allocations.drop(allocation)
                self._cluster.changed_pods.add(allocation.uid)
                if pod is not None and pod.gated:
                    self._allocations.follow(pod.uid)

    def absorb_pod(self, uid: PodUid) -> None:
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
        for kind in self._kinds.active:
            outgrown = kind.outgrown(pod)
            if outgrown is not None:
                self._allocations.drop(outgrown)
            found = kind.adopt(pod)
            if found is not None:
                self._allocations.begin(found)

    def _report_fault(self, pod: PodInfo) -> None:
        if pod.fault and pod.gated and (one := self._state.pods.record(pod.uid)).last_event != pod.fault:
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
        """Gives up an allocation whose gated pod could not run on the node any more."""
        pod = self._cluster.pods.get(allocation.uid)
        if pod is None or allocation.given_up:
            return
        if self._state.is_withdrawn(pod):
            self._allocations.give_up(allocation)  # an earlier process began this
            return
        if not pod.gated or ("pod", pod.uid) in self._state.busy:
            return
        able = self._cluster.index.open_to(pod.constraints) & self._cluster.index.mask_of(allocation.node)
        faulty = allocation.node in self._state.faults and allocation.in_object
        if pod.terminating or (allocation.in_object and not allocation.slices) or not able or faulty:
            self._allocations.give_up(allocation)
