"""Brings allocations in line with the observed cluster, and decides which pods wait. No I/O.

Three rules:

- :func:`tessera.controller.slicing.state.allocation.next_step` says what happens next with an allocation.
  A new process that observes the same objects continues where the old one ended.
- A slot is free again only when the agent reports so, or if no write ever recorded the allocation.
- A pod that runs without an allocation (for instance after a new installation) gets the slices that its node's agent
  reports for it, if they match its request.
"""

from tessera.api.instaslice import Instaslice, NodeResources, find_misfit
from tessera.api.names import NodeName, PodUid
from tessera.controller.objects.node_info import AgentState
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.slicing.planning.fair_order import held_by
from tessera.controller.slicing.state.allocation import (
    Allocation,
    adopt_record,
    is_wanted,
    observe_record,
    recorded_uids,
    reported_slices,
    will_never_run,
)
from tessera.controller.slicing.state.reservation_rules import is_passing
from tessera.controller.slicing.state.slicer_state import SlicerState
from tessera.controller.slicing.state.waiting_pod import CANNOT_START, WAITING, PodState
from tessera.mig.names import resource_spelling


class AllocationLifecycle:
    """Brings allocations, and the set of waiting pods, in line with the cluster's state.

    Args:
        state: the slicer's state, which this class changes.
    """

    def __init__(self, state: SlicerState) -> None:
        self._state = state
        self._cluster = state.cluster

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
            self._follow(allocation.uid)

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
                self._settle(allocation, gone=False)
                continue
            if item is not None:
                observe_record(allocation, item)
                if allocation.deletion_requested and not allocation.given_up:
                    self.give_up(allocation)  # an earlier process began this
            else:
                allocation.sent = allocation.requested = False
                allocation.result = None
            self._settle(allocation, gone=item is None)
        return new_records

    def _settle(self, allocation: Allocation, *, gone: bool) -> None:
        """Frees destroyed slices, and forgets an allocation that is neither wanted nor recorded."""
        pod = self._cluster.pods.get(allocation.uid)
        if is_wanted(allocation, pod) and not (gone and pod is not None and pod.gated):
            return
        if allocation.destroyed or not allocation.recorded:
            self.free(allocation)
        if not allocation.recorded:
            self.forget(allocation)

    def _rebuild(self, node: NodeName, resources: NodeResources) -> None:
        self._cluster.capacity_changes.room_may_have_grown(node)
        held = [one for one in self._state.allocations.on(node) if not one.freed and not one.by_pod]
        held.sort(key=self._claim_rank)
        for allocation in self._state.inventory.rebuild(node, resources, held):
            pod = self._cluster.pods.get(allocation.uid)
            if pod is None or pod.gated:
                self.give_up(allocation)

    def _claim_rank(self, allocation: Allocation) -> tuple[bool, bool, bool]:
        """Sort key of records that claim one slot: ungated pods first, then existing slices, then recorded ones."""
        pod = self._cluster.pods.get(allocation.uid)
        exists = allocation.result is not None and allocation.result[1] == "created"
        return (pod is None or pod.gated, not exists, not allocation.recorded)

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
            self._settle(allocation, gone=False)
            self._state.dirty_nodes.add(allocation.node)
            self._check_allocation(allocation)
        if pod is None or not pod.gated:
            self._state.pods.handed_over.discard(uid)
        self._report_condition(uid)
        self._state.pods.forget_refusal(uid)
        self._follow(uid)
        self._count_usage(uid)
        if pod is not None and pod.finished and not self._state.allocations.of(uid):
            self._cluster.drop_pod(uid)
            self._cluster.changed_pods.discard(uid)

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
            self.add(allocation)

    def _adopt_devices(self, pod: PodInfo) -> None:
        """Counts the whole cards and shares of a pod as taken where it is bound, or pinned by Tessera.

        A node may have fewer than its pods request: the scheduler has bound a pod to cards that were promised, or a
        card has failed. The pod then holds those that are left, and more as others end.
        """
        known = self._state.allocations.current_of(pod.uid)
        if known is not None and self._is_short(known, pod) and self._state.devices.has_free(known.node, pod.devices):
            self._drop_devices(known)
            known = None
        if not pod.devices or pod.gated or will_never_run(pod) or known is not None or self._is_withdrawn(pod):
            return
        home = self._home_of_devices(pod)
        if not home or self._state.allocations.get(home, pod.uid) is not None:
            return
        slices = tuple(self._state.devices.free_slices(home, pod.devices))
        if len(slices) < len(pod.devices) and self.has_lost_its_turn(pod):
            return  # those whose turn it is have the others
        allocation = Allocation(home, pod.uid, pod.namespace, pod.name, slices, pod.amounts, by_pod=True)
        if self._state.inventory.occupy(allocation):
            self.add(allocation)

    def _home_of_devices(self, pod: PodInfo) -> NodeName | None:
        """Returns the node whose devices a pod holds; None if it holds none.

        A pinned pod has an allocation even if its node has gone, so that it is not left there for ever.
        """
        if not self._state.devices.used:
            return None
        if pod.node:
            return pod.node if pod.node in self._state.devices else None
        if not self._is_placed_here(pod) or not pod.hostname or pod.gates:
            return None
        return self._cluster.required_node(pod) or NodeName(pod.hostname)

    def _is_placed_here(self, pod: PodInfo) -> bool:
        """True if Tessera has pinned the pod, and its namespace is managed.

        In other namespaces the mark counts for nothing: whoever may change pods there could write it.
        """
        return pod.pinned and self._cluster.is_managed(pod.namespace)

    def _is_short(self, allocation: Allocation, pod: PodInfo) -> bool:
        """True if a pod past the gate holds fewer whole cards or shares than it requests."""
        return allocation.by_pod and not pod.gated and len(allocation.slices) < len(pod.devices)

    def _drop_devices(self, allocation: Allocation) -> None:
        self.free(allocation)
        self._state.allocations.remove(allocation)

    def recount_devices(self) -> None:
        """After a change of nodes' devices, counts anew what pods hold there; a pod behind the gate waits again."""
        rebuilt, self._state.devices.rebuilt = self._state.devices.rebuilt, set()
        for node in sorted(rebuilt):
            for allocation in self._state.allocations.on(node):
                pod = self._cluster.pods.get(allocation.uid)
                if allocation.by_pod and not allocation.freed:
                    self._drop_devices(allocation)
                    self._cluster.changed_pods.add(allocation.uid)
                    if pod is not None and pod.gated:
                        self._follow(pod.uid)
            self._cluster.changed_pods |= self._cluster.device_pods_of(node)

    def add(self, allocation: Allocation) -> None:
        """Adds an allocation whose slots are already occupied in the inventory."""
        self._state.allocations.add(allocation)
        self._state.pods.move(allocation.uid, PodState.PLACED)
        one = self._state.pods.record(allocation.uid)
        one.last_event = one.told = ""
        self._report_condition(allocation.uid)
        self._count_usage(allocation.uid)
        self._state.dirty_nodes.add(allocation.node)

    def _report_condition(self, uid: PodUid) -> None:
        """Has a pod's condition compared with the state, if it says or should say that slices were taken back."""
        pod = self._cluster.pods.get(uid)
        one = self._state.pods.get(uid)
        if (one is not None and one.told) or (pod is not None and pod.slices_withdrawn):
            self._state.pods_to_report.add(uid)

    def _cannot_start(self, pod: PodInfo) -> bool:
        if pod.unschedulable_message or (pod.unstarted and self.agent_is_down(pod.node)):
            return True
        return not pod.node and is_passing(self._state, pod)

    def agent_is_down(self, node: NodeName) -> bool:
        """True if a node's agent is known to be down."""
        facts = self._cluster.nodes.get(node)
        return facts is not None and facts.agent is AgentState.DOWN

    def _report_fault(self, pod: PodInfo) -> None:
        if pod.fault and pod.gated and (one := self._state.pods.record(pod.uid)).last_event != pod.fault:
            one.last_event = pod.fault
            self.record_event(pod, "SliceRefused", pod.fault, warning=True)

    def _keep_one_allocation(self, pod: PodInfo) -> None:
        """Keeps one of several allocations to a pod: the one on its node, else the most advanced one."""
        live = [one for one in self._state.allocations.of(pod.uid) if not one.given_up]
        home = self._cluster.required_node(pod)
        live.sort(key=lambda one: (one.node != home, one.result is None, not one.requested))
        for index, allocation in enumerate(live):
            if index or (home is not None and allocation.node != home):
                self.give_up(allocation)

    def _check_allocation(self, allocation: Allocation) -> None:
        """Gives up an allocation whose gated pod could not run on the node any more."""
        pod = self._cluster.pods.get(allocation.uid)
        if pod is None or allocation.given_up:
            return
        if self._is_withdrawn(pod):
            self.give_up(allocation)  # an earlier process began this
            return
        if not pod.gated or ("pod", pod.uid) in self._state.busy:
            return
        able = self._cluster.index.open_to(pod.constraints) & self._cluster.index.mask_of(allocation.node)
        faulty = allocation.node in self._state.faults and not allocation.by_pod
        if pod.terminating or not allocation.slices or not able or faulty:
            self.give_up(allocation)

    def give_up(self, allocation: Allocation) -> None:
        """Begins to take the slices from the pod; the node's object records the progress."""
        allocation.given_up = True
        lives = not will_never_run(self._cluster.pods.get(allocation.uid))
        if lives and self._state.allocations.current_of(allocation.uid) is None:
            self._state.pods.record(allocation.uid).displaced = True
        self._state.dirty_nodes.add(allocation.node)
        self._settle(allocation, gone=False)
        self._follow(allocation.uid)
        self._count_usage(allocation.uid)

    def free(self, allocation: Allocation) -> None:
        """Makes the slots free for other pods."""
        if not allocation.freed:
            allocation.freed = True
            self._state.inventory.release(allocation)
            self._cluster.capacity_changes.room_may_have_grown(allocation.node)
            if allocation.by_pod:
                self._recount_short_pods(allocation.node)

    def _recount_short_pods(self, node: NodeName) -> None:
        for other in self._state.allocations.on(node):
            pod = self._cluster.pods.get(other.uid)
            if pod is not None and not other.freed and self._is_short(other, pod):
                self._cluster.changed_pods.add(pod.uid)

    def forget(self, allocation: Allocation) -> None:
        """Removes an allocation of which nothing is recorded any more."""
        self._state.allocations.remove(allocation)
        self._cluster.changed_pods.add(allocation.uid)
        if allocation.uid in self._state.waiting:
            self._cluster.capacity_changes.room_may_have_grown(
                allocation.node
            )  # the pod may be placed on this node again

    # Waiting pods

    def _follow(self, uid: PodUid) -> None:
        """Brings the state of a pod in line with the pod, and with its allocations."""
        pod, pods = self._cluster.pods.get(uid), self._state.pods
        if pod is None:
            pods.drop(uid)
            return
        before, state = pods.state_of(uid), self._state_of(pod)
        pods.move(uid, state, pods.waiting[uid].queue if state in WAITING and uid in pods.waiting else None)
        if before in CANNOT_START and state not in CANNOT_START and pod.node:
            pods.record(uid).told = ""
            self._state.pods_to_report.add(uid)
        if will_never_run(pod) and (one := pods.get(uid)) is not None:
            one.displaced = False

    def _state_of(self, pod: PodInfo) -> PodState:
        one = self._state.pods.get(pod.uid)
        if self._state.allocations.current_of(pod.uid) is not None:
            return PodState.STUCK if not pod.terminating and self._cannot_start(pod) else PodState.PLACED
        if one is not None and one.denied is not None:
            return PodState.DENIED
        if self._is_withdrawn(pod):
            lost = bool(pod.owner) and not pod.terminating and self._cannot_start(pod)
            return PodState.LOST if lost else PodState.WITHDRAWN
        if self._must_wait(pod):
            return one.state if one is not None and one.waits else PodState.QUEUED
        return PodState.OUTSIDE

    def _must_wait(self, pod: PodInfo) -> bool:
        if pod.ready_to_place:
            return True
        needs_slices = bool(pod.profiles) and not pod.finished and not pod.terminating
        home = self._cluster.required_node(pod)
        return needs_slices and home is not None and home in self._state.cards

    def has_lost_its_turn(self, pod: PodInfo) -> bool:
        """True if a pod was bound after its slices had been taken back, and holds none of them any more."""
        told = not pod.terminating and self._is_told(pod)
        waits = pod.unstarted or (bool(pod.node and pod.devices) and not pod.started)
        return told and waits and not self._state.allocations.of(pod.uid)

    def _is_withdrawn(self, pod: PodInfo) -> bool:
        """True if the slices of a pod were taken back and the scheduler has still not bound it."""
        return not pod.gated and not pod.node and self._is_told(pod)

    def _is_told(self, pod: PodInfo) -> bool:
        """True if the pod's condition says, or is about to say, that its slices were taken back."""
        one = self._state.pods.get(pod.uid)
        return pod.slices_withdrawn or (one is not None and bool(one.told))

    def _count_usage(self, uid: PodUid) -> None:
        """Counts the amounts that a pod holds: on the node that it is bound to, else on the promised one."""
        pod = self._cluster.pods.get(uid)
        home: NodeName | None = None
        if pod is not None and not pod.finished:
            live = self._state.allocations.current_of(uid)
            home = pod.node or (live.node if live is not None else None)
        self._index_pod(uid, pod, home)
        self._count_for_queue(uid, pod)
        left = self._state.usage.assign(uid, home, pod.amounts if pod is not None else {})
        self._rate_devices(uid, pod, home, left)
        if left is not None and (left in self._state.cards or left in self._state.devices):
            self._cluster.capacity_changes.room_may_have_grown(left)

    def _rate_devices(self, uid: PodUid, pod: PodInfo | None, *homes: NodeName | None) -> None:
        """Counts a pod for the ratings of nodes, and rates again the nodes where it holds amounts, or did."""
        if not self._state.devices.used:
            return
        home = homes[0]
        place = self._cluster.nodes.get(home) if home is not None and home in self._state.devices else None
        counts = pod is not None and not pod.finished and (home is None or place is not None)
        self._state.device_demand.observe(uid, pod if counts else None, place)
        for node in homes:
            if node is not None and node in self._state.devices:
                self._state.ratings.note(node)

    def _count_for_queue(self, uid: PodUid, pod: PodInfo | None) -> None:
        """Counts the slices of a living pod for its queue."""
        live = self._state.allocations.current_of(uid) if pod is not None and not will_never_run(pod) else None
        if live is not None and live.by_pod and pod is not None and not pod.gated and not self._is_placed_here(pod):
            live = None  # the scheduler placed it
        queue = self._cluster.queue_of(pod) if pod is not None else ""
        holding = held_by(self._state, live) if live is not None else None
        self._state.ledger.assign(uid, queue, holding, self._state.now)

    def _index_pod(self, uid: PodUid, pod: PodInfo | None, home: NodeName | None) -> None:
        """Updates the index of pods on nodes with the node where a pod runs or has a promised place."""
        before = self._cluster.placed_pods.changes
        if pod is None:
            self._cluster.placed_pods.drop(uid)
        else:
            self._cluster.placed_pods.put(pod, home)
        self._cluster.dependencies_changed |= self._cluster.placed_pods.changes != before

    def record_event(self, pod: PodInfo, reason: str, message: str, *, warning: bool = False) -> None:
        """Queues an Event on a pod."""
        self._state.add_event(pod, reason, message, warning=warning)
