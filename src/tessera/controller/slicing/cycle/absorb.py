"""Step 1, for each changed node and pod: brings allocations and pods in line with a changed node or pod.

A pod that runs without an allocation (for instance after a new installation) gets the slices that its node's agent
reports for it, if they match its request.
"""

from tessera.api.instaslice import Instaslice, NodeResources, find_misfit
from tessera.api.names import NodeName, PodUid
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.slicing.planning.allocations import (
    Allocations,
    has_lost_its_turn,
    is_placed_here,
    is_short,
    is_withdrawn,
)
from tessera.controller.slicing.state.allocation import (
    Allocation,
    adopt_record,
    recorded_uids,
    reported_slices,
    will_never_run,
)
from tessera.controller.slicing.state.slicer_state import SlicerState
from tessera.mig.names import resource_spelling


class Absorber:
    """Absorbs changed nodes and pods. It has no state of its own.

    Args:
        state: the slicer's state.
        allocations: begins and ends allocations.
    """

    def __init__(self, state: SlicerState, allocations: Allocations) -> None:
        self._state = state
        self._cluster = state.cluster
        self._allocations = allocations

    def absorb_node(self, node: NodeName) -> None:
        """Brings allocations and cards of one node in line with its object and its state."""
        item = self._cluster.objects.get(node)
        facts = self._cluster.nodes.get(node)
        fault = self._fault(node, item)
        if fault:
            self._state.faults[node] = fault
        else:
            self._state.faults.pop(node, None)
        new_records = not fault and self._absorb_records(node, item)
        sliced = item is not None and facts is not None and facts.offers_on_demand and not fault
        resources = item.status.node_resources if item is not None and sliced else None
        if self._state.devices.used:
            self._state.ratings.note(node)
        if self._state.devices.put(node, facts.devices if facts is not None else ()):
            self._cluster.capacity_changes.room_may_have_grown(node)
        if resources is None:
            if self._state.cards.pop(node, None) is not None:
                self._state.inventory.remove(node)
        elif new_records or self._state.cards.get(node) != resources:
            self._state.cards[node] = resources
            self._rebuild(node, resources)
            self._cluster.changed_pods |= {
                PodUid(each.pod_uid) for each in resources.foreign
            } & self._cluster.pods.keys()
        self._note_profiles(node, resources)
        self._state.dirty_nodes.add(node)
        for allocation in self._state.allocations.on(node):
            self._check_allocation(allocation)
            self._allocations.follow(allocation.uid)

    def _note_profiles(self, node: NodeName, resources: NodeResources | None) -> None:
        made = (resources.profiles if resources is not None else frozenset()) | self._state.devices.resources(node)
        if made:
            self._state.profiles_by_node[node] = made
        else:
            self._state.profiles_by_node.pop(node, None)

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
            if allocation.by_pod:
                self._allocations.settle(allocation, gone=False)
                continue
            self._allocations.note_record(allocation, item)
        return new_records

    def _rebuild(self, node: NodeName, resources: NodeResources) -> None:
        self._cluster.capacity_changes.room_may_have_grown(node)
        held = [one for one in self._state.allocations.on(node) if not one.freed and not one.by_pod]
        held.sort(key=self._claim_rank)
        for allocation in self._state.inventory.rebuild(node, resources, held):
            pod = self._cluster.pods.get(allocation.uid)
            if pod is None or pod.gated:
                self._allocations.give_up(allocation)

    def _claim_rank(self, allocation: Allocation) -> tuple[bool, bool, bool]:
        """Sort key of records that claim one slot: ungated pods first, then existing slices, then recorded ones."""
        pod = self._cluster.pods.get(allocation.uid)
        exists = allocation.result is not None and allocation.result[1] == "created"
        return (pod is None or pod.gated, not exists, not allocation.recorded)

    def recount_devices(self) -> None:
        """After a change of nodes' devices, counts anew what pods hold there; a pod behind the gate waits again."""
        rebuilt, self._state.devices.rebuilt = self._state.devices.rebuilt, set()
        for node in sorted(rebuilt):
            for allocation in self._state.allocations.on(node):
                pod = self._cluster.pods.get(allocation.uid)
                if allocation.by_pod and not allocation.freed:
                    self._allocations.drop(allocation)
                    self._cluster.changed_pods.add(allocation.uid)
                    if pod is not None and pod.gated:
                        self._allocations.follow(pod.uid)
            self._cluster.changed_pods |= self._cluster.device_pods_of(node)

    def absorb_pod(self, uid: PodUid) -> None:
        """Updates a pod's allocations, and the set of waiting pods, from the pod's present state."""
        pod = self._cluster.pods.get(uid)
        known = self._state.pods.get(uid)
        if known is not None and known.denied != pod:
            known.denied = None
        if pod is not None:
            self._keep_one_allocation(pod)
            self._adopt_reported_slices(pod)
            self._adopt_devices(pod)
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
        if is_withdrawn(self._state, pod):
            self._allocations.give_up(allocation)  # an earlier process began this
            return
        if not pod.gated or ("pod", pod.uid) in self._state.busy:
            return
        able = self._cluster.index.open_to(pod.constraints) & self._cluster.index.mask_of(allocation.node)
        faulty = allocation.node in self._state.faults and not allocation.by_pod
        if pod.terminating or not allocation.slices or not able or faulty:
            self._allocations.give_up(allocation)

    def _adopt_reported_slices(self, pod: PodInfo) -> None:
        """Makes an allocation of the slices that the node's agent reports for a pod without one."""
        resources = self._state.cards.get(pod.node) if pod.profiles and not pod.finished else None
        if resources is None or self._state.allocations.of(pod.uid):
            return
        slices = reported_slices(resources, pod.uid)
        if sorted(resource_spelling(each.profile) for each in slices) != sorted(pod.profiles):
            return
        allocation = Allocation(pod.node, pod.uid, pod.namespace, pod.name, slices, pod.amounts)
        if self._state.inventory.adopt_foreign(allocation):
            self._allocations.begin(allocation)

    def _adopt_devices(self, pod: PodInfo) -> None:
        """Counts the whole cards and shares of a pod as taken where it is bound, or pinned by Tessera.

        A node may have fewer than its pods request: the scheduler has bound a pod to cards that were promised, or a
        card has failed. The pod then holds those that are left, and more as others end.
        """
        known = self._state.allocations.current_of(pod.uid)
        if known is not None and is_short(known, pod) and self._state.devices.has_free(known.node, pod.devices):
            self._allocations.drop(known)
            known = None
        if not pod.devices or pod.gated or will_never_run(pod) or known is not None or is_withdrawn(self._state, pod):
            return
        home = self._home_of_devices(pod)
        if not home or self._state.allocations.get(home, pod.uid) is not None:
            return
        slices = tuple(self._state.devices.free_slices(home, pod.devices))
        if len(slices) < len(pod.devices) and has_lost_its_turn(self._state, pod):
            return  # those whose turn it is have the others
        allocation = Allocation(home, pod.uid, pod.namespace, pod.name, slices, pod.amounts, by_pod=True)
        if self._state.inventory.occupy(allocation):
            self._allocations.begin(allocation)

    def _home_of_devices(self, pod: PodInfo) -> NodeName | None:
        """Returns the node whose devices a pod holds; None if it holds none.

        A pinned pod has an allocation even if its node has gone, so that it is not left there for ever.
        """
        if not self._state.devices.used:
            return None
        if pod.node:
            return pod.node if pod.node in self._state.devices else None
        if not is_placed_here(self._state, pod) or not pod.hostname or pod.gates:
            return None
        return self._cluster.required_node(pod) or NodeName(pod.hostname)
