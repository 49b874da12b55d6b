"""Begins, notes and ends allocations. Nothing else changes one, or the state of its pod.

Rules:

- :func:`tessera.controller.slicing.state.allocation.next_step` says what happens next with an allocation.
  A new process that observes the same objects continues where the old one ended.
- A slot is free again only when the agent reports so, or if no write ever recorded the allocation.
"""

from collections.abc import Iterable

from tessera.api.instaslice import Instaslice
from tessera.api.names import NodeName, PodUid
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.slicing.kinds import Kinds
from tessera.controller.slicing.state.allocation import Allocation, is_wanted, observe_record, will_never_run
from tessera.controller.slicing.state.reservation_rules import held_by, is_backfilled
from tessera.controller.slicing.state.slicer_state import SlicerState
from tessera.controller.slicing.state.waiting_pod import CANNOT_START, WAITING, PodState


class Allocations:
    """The life of all allocations. It has no state of its own.

    Args:
        state: the slicer's state.
        kinds: count what pods hold.
    """

    def __init__(self, state: SlicerState, kinds: Kinds) -> None:
        self._state = state
        self._kinds = kinds
        self._cluster = state.cluster

    # Begin

    def begin(self, allocation: Allocation) -> None:
        """Gives a pod slices whose slots are already occupied in the inventory."""
        self._state.allocations.add(allocation)
        self._state.pods.move(allocation.uid, PodState.PLACED)
        one = self._state.pods.record(allocation.uid)
        one.last_event = one.told = ""
        self.report_condition(allocation.uid)
        self.count_usage(allocation.uid)
        self._state.dirty_nodes.add(allocation.node)

    # Note what others recorded, and what was written

    def note_record(self, allocation: Allocation, item: Instaslice | None) -> None:
        """Notes what a node's object says of an allocation; None if the node has none."""
        if item is not None:
            observe_record(allocation, item)
            if allocation.deletion_requested and not allocation.given_up:
                self.give_up(allocation)  # an earlier process began this
        else:
            allocation.sent = allocation.requested = False
            allocation.result = None
        self.settle(allocation, gone=item is None)

    def note_sent(self, node: NodeName, pods: Iterable[PodUid], *, sent: bool) -> None:
        """Notes that the server may have taken the requests of these pods, or that it has not."""
        for uid in pods:
            allocation = self._state.allocations.get(node, uid)
            if allocation is not None:
                allocation.sent = sent

    # End

    def settle(self, allocation: Allocation, *, gone: bool) -> None:
        """Frees destroyed slices, and forgets an allocation that is neither wanted nor recorded."""
        pod = self._cluster.pods.get(allocation.uid)
        if is_wanted(allocation, pod) and not (gone and pod is not None and pod.is_held):
            return
        if allocation.destroyed or not allocation.recorded:
            self._free(allocation)
        if not allocation.recorded:
            self.forget(allocation)

    def give_up(self, allocation: Allocation) -> None:
        """Begins to take the slices from the pod; the node's object records the progress."""
        allocation.given_up = True
        lives = not will_never_run(self._cluster.pods.get(allocation.uid))
        if lives and self._state.allocations.current_of(allocation.uid) is None:
            self._state.pods.record(allocation.uid).displaced = True
        self._state.dirty_nodes.add(allocation.node)
        self.settle(allocation, gone=False)
        self.follow(allocation.uid)
        self.count_usage(allocation.uid)

    def end(self, allocation: Allocation) -> None:
        """Frees the slots of an allocation of which nothing is recorded any more, and forgets it."""
        self._free(allocation)
        self.forget(allocation)

    def drop(self, allocation: Allocation) -> None:
        """Frees the whole cards or shares of a pod, which are counted anew."""
        self._free(allocation)
        self._state.allocations.remove(allocation)

    def _free(self, allocation: Allocation) -> None:
        """Makes the slots free for other pods."""
        if not allocation.freed:
            allocation.freed = True
            self._state.inventory.release(allocation)
            self._cluster.capacity_changes.room_may_have_grown(allocation.node)
            if not allocation.in_object:
                self._kinds.by_name[allocation.kind.name].freed(allocation)

    def forget(self, allocation: Allocation) -> None:
        """Removes an allocation of which nothing is recorded any more."""
        self._state.allocations.remove(allocation)
        self._cluster.changed_pods.add(allocation.uid)
        if allocation.uid in self._state.waiting:
            self._cluster.capacity_changes.room_may_have_grown(
                allocation.node
            )  # the pod may be placed on this node again

    # The pod of an allocation

    def follow(self, uid: PodUid) -> None:
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
        if self._state.is_withdrawn(pod):
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

    def _cannot_start(self, pod: PodInfo) -> bool:
        if pod.unschedulable_message or (pod.unstarted and self._state.agent_is_down(pod.node)):
            return True
        return not pod.node and pod.deadline is not None and is_backfilled(self._state, pod)

    def report_condition(self, uid: PodUid) -> None:
        """Has a pod's condition compared with the state, if it says or should say that slices were taken back."""
        pod = self._cluster.pods.get(uid)
        one = self._state.pods.get(uid)
        if (one is not None and one.told) or (pod is not None and pod.slices_withdrawn):
            self._state.pods_to_report.add(uid)

    def count_usage(self, uid: PodUid) -> None:
        """Counts the amounts that a pod holds: on the node that it is bound to, else on the promised one."""
        pod = self._cluster.pods.get(uid)
        home: NodeName | None = None
        if pod is not None and not pod.finished:
            live = self._state.allocations.current_of(uid)
            home = pod.node or (live.node if live is not None else None)
        self._index_pod(uid, pod, home)
        if self._cluster.queues:
            self._count_for_queue(uid, pod)
        left = self._state.usage.assign(uid, home, pod.amounts if pod is not None else {})
        for kind in self._kinds.having["count"]:
            kind.count(uid, pod, home, left)
        if left is not None and left in self._state.profiles_by_node:
            self._cluster.capacity_changes.room_may_have_grown(left)

    def _count_for_queue(self, uid: PodUid, pod: PodInfo | None) -> None:
        """Counts the slices of a living pod for its queue."""
        live = self._state.allocations.current_of(uid) if pod is not None and not will_never_run(pod) else None
        past_gate = live is not None and live.by_pod and pod is not None and not pod.gated
        if past_gate and pod is not None and not self._state.is_placed_here(pod):
            live = None  # the scheduler placed it
        queue = self._cluster.queue_of(pod) if pod is not None else ""
        holding = held_by(self._state, live) if live is not None else None
        kept = self._state.reservations.get(uid) if live is None else None
        if kept is not None and kept.is_left:  # spare slots count for no queue
            queue, holding = kept.queue[0], held_by(self._state, kept)
        self._state.ledger.assign(uid, queue, holding, self._state.now)

    def _index_pod(self, uid: PodUid, pod: PodInfo | None, home: NodeName | None) -> None:
        """Updates the index of pods on nodes with the node where a pod runs or has a promised place."""
        before = self._cluster.placed_pods.changes
        if pod is None:
            self._cluster.placed_pods.drop(uid)
        else:
            self._cluster.placed_pods.put(pod, home)
        self._cluster.dependencies_changed |= self._cluster.placed_pods.changes != before
