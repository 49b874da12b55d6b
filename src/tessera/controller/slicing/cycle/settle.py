"""Step 5: carries out what was proposed, one proposal before the next is made; begins, notes and ends allocations.

Nothing else changes an allocation, or the state of its pod.
:func:`tessera.controller.slicing.state.allocation.next_step` says what happens next with one, so a new process that
observes the same objects continues where the old one ended. A slot is free again only when the agent reports so, or if
no write ever recorded the allocation.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from functools import partial

from tessera.api.instaslice import Instaslice
from tessera.api.names import NodeName, PodUid
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.slicing.batch_placement import Placed
from tessera.controller.slicing.kinds import Kinds
from tessera.controller.slicing.lasting_refusals import kind_of
from tessera.controller.slicing.planner import Planner
from tessera.controller.slicing.proposals import (
    Backfill,
    EndOfReservation,
    Eviction,
    FailedUpdate,
    KindRefusal,
    NewReservation,
    Notice,
    Proposal,
    Refusal,
    Return,
    Withdrawal,
)
from tessera.controller.slicing.state.allocation import Allocation, is_wanted, observe_record, will_never_run
from tessera.controller.slicing.state.messages import lost_slices_text, reserved_text, waiting_text
from tessera.controller.slicing.state.node_records import RecordedMove, Reservation
from tessera.controller.slicing.state.reservation_rules import held_by, holders_of, is_backfilled, queue_key
from tessera.controller.slicing.state.slicer_state import SlicerState
from tessera.controller.slicing.state.waiting_pod import CANNOT_START, WAITING, PodState, competes_for_room
from tessera.limits import BATCH_PODS
from tessera.reasons.reason import NoNode, Reason


class Allocations:
    """The life of all allocations, without a state of its own.

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
            self._forget(allocation)

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
        self._forget(allocation)

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

    def _forget(self, allocation: Allocation) -> None:
        """Removes an allocation of which nothing is recorded any more."""
        self._state.allocations.remove(allocation)
        self._cluster.changed_pods.add(allocation.uid)
        if allocation.uid in self._state.waiting:
            self._cluster.capacity_changes.room_may_have_grown(allocation.node)  # the pod may be placed there again

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


class Settlement:
    """Changes the state by proposals.

    Args:
        state: the slicer's state.
        allocations: begins and ends allocations.
        planner: knows which pods only fixed layouts serve.

    Attributes:
        decisions: allocations made so far; never decreases.
        moves: pods that got other slices after theirs were taken back; never decreases.
        refusals: how often planning refused a pod for a new reason, by the reason's word; never decreases.
    """

    def __init__(self, state: SlicerState, allocations: Allocations, planner: Planner) -> None:
        self.decisions = 0
        self.moves = 0
        self.refusals: Counter[str] = Counter()
        self.allocations = allocations
        self._state = state
        self._planner = planner
        #: Texts of events, while proposals are carried out: by the reason's identity, the namespace and the slices.
        self._texts: dict[tuple[int, str, tuple[str, ...]], tuple[Reason, str]] = {}

    def settle(self, proposals: Iterable[Proposal]) -> None:
        """Carries out each proposal before the next is made."""
        for proposal in proposals:
            match proposal:
                case Placed():
                    self._allocate(proposal)
                case Refusal():
                    self._refuse(proposal)
                case KindRefusal(kind, reason):
                    self._refuse_kind(kind, reason)
                case Return(allocation):
                    self.allocations.give_up(allocation)
                case Withdrawal():
                    self._withdraw(proposal)
                case Backfill(uid, reservations):
                    for each in reservations:
                        each.holders.add(uid)
                        self._state.dirty_nodes.add(each.node)
                case NewReservation():
                    self._reserve(proposal)
                case EndOfReservation(reservation):
                    self._end(reservation)
                case Eviction(evict):
                    self._state.evictions[evict.uid] = evict
                case FailedUpdate(pod, revision, node):
                    entry = RecordedMove(uid=pod.uid, owner=pod.owner, date=self._state.now, revision=revision)
                    self._state.moves[node] = (*self._state.moves.get(node, ()), entry)
                    self._state.dirty_nodes.add(node)
                case Notice(pod, reason, text, warning):
                    self._state.add_event(pod, reason, text, warning=warning)
        self._texts.clear()

    # Allocations

    def _allocate(self, placed: Placed) -> None:
        """Gives a pod the slices that planning found for it."""
        pod = placed.pod
        allocation = Allocation(
            placed.node, pod.uid, pod.namespace, pod.name, placed.slices, pod.amounts, kind=pod.kind
        )
        taken = self._state.inventory.occupy(allocation)
        assert taken, f"planned slots of {pod.key} on {placed.node} are taken"
        self._state.ages.note(pod, self._state.now, competes=True)
        one = self._state.pods.record(pod.uid)
        self.moves += one.displaced
        one.displaced = False
        self.allocations.begin(allocation)
        reservation = self._state.reservations.get(pod.uid)
        if reservation is not None:
            self._end(reservation)
        self._state.reservations_due |= bool(self._state.reservations)
        self.decisions += 1

    def _withdraw(self, withdrawal: Withdrawal) -> None:
        pod = withdrawal.pod
        word = "AgentNotReady" if pod.node else "SliceReclaimed"
        self._state.add_event(pod, word, withdrawal.text, warning=True)
        if pod.is_held and not pod.gates:  # nothing pins it, so it may be placed again
            self.allocations.give_up(withdrawal.allocation)
            return
        self._state.pods.record(pod.uid).told = withdrawal.text
        self._state.pods_to_report.add(pod.uid)
        if not pod.node:
            self.allocations.give_up(withdrawal.allocation)

    # Refusals

    def _refuse(self, refusal: Refusal) -> None:
        """Notes why a pod gets no slices. A new reason brings an event."""
        pod, reason, pods = refusal.pod, refusal.reason, self._state.pods
        one = pods.waiting[pod.uid]
        pods.note_refusal(pod.uid)
        one.refused_by_all = refusal.by_all
        if pod.gated and self._planner.only_fixed_layouts_serve(pod):
            pods.move(pod.uid, PodState.FIXED)
            return
        if refusal.dependent:
            one.dependent = True
            self._state.cluster.placed_pods.watch(pod.uid, pod.relations)
        if reason is not None:
            self._note_reason(pod, reason)
        if refusal.until_relief:
            pods.note_limit(pod.uid)
        kind = kind_of(self._state, pod) if refusal.of_kind else None
        if kind is not None:
            pods.note_refusal_of_kind(pod, kind)

    def _note_reason(self, pod: PodInfo, reason: Reason) -> None:
        state = self._state
        state.ages.note(pod, state.now, competes=competes_for_room(reason))
        state.pods.refuse(pod, reason, partial(queue_key, state))
        state.reservations_due = True
        one = state.pods.waiting[pod.uid]
        if one.last_event == type(reason).__name__:
            return
        one.last_event = type(reason).__name__
        self.refusals[reason.metric()] += 1
        if state.cluster.required_node(pod) is None:
            hopeless = reason.never or isinstance(reason, NoNode)  # as kube-scheduler's FailedScheduling
            state.add_event(pod, "SliceWaiting", self._waiting_text(pod, reason), warning=hopeless)
        else:
            state.add_event(pod, "SliceLost", lost_slices_text(pod, reason, self._indexes_for(reason)), warning=True)

    def _waiting_text(self, pod: PodInfo, reason: Reason) -> str:
        """Returns the text once for all pods that readers of one namespace see wait for the same slices and reason."""
        key = (id(reason), pod.namespace, pod.profiles)
        known = self._texts.get(key)
        if known is None:
            text = waiting_text(pod, reason, self._indexes_for(reason))
            known = self._texts[key] = (reason, text)  # no other reason has this id meanwhile
        return known[1]

    def _indexes_for(self, reason: Reason) -> Mapping[str, int]:
        """The indexes of the cards of the nodes that a reason names."""
        nodes = {NodeName(each.node) for each in reason.blockers} & self._state.cards.keys()
        return {gpu: index for node in nodes for gpu, index in self._state.cards[node].indexes().items()}

    def _refuse_kind(self, kind: Hashable, reason: Reason) -> None:
        """Gives the reason of a refused pod to the pods of its kind that were not asked.

        A pod whose reason becomes one of another class is refused like the first, with an event. Of more such pods than
        one batch has, the others are planned in further decisions.
        """
        pods, competes = self._state.pods, competes_for_room(reason)
        left = int(BATCH_PODS)
        for uid in pods.pods_of_kind(kind):
            one, pod = pods.waiting[uid], self._state.cluster.pods[uid]
            if type(one.reason) is type(reason):
                one.reason = reason
                self._state.ages.note(pod, self._state.now, competes=competes)
            elif left > 0:
                left -= 1
                self._refuse(Refusal(pod, reason, of_kind=True))
            else:
                pods.forget_refusal(uid)

    # Reservations

    def _reserve(self, new: NewReservation) -> None:
        made, pod = new.reservation, new.pod
        self._state.reservations[made.uid] = made
        self._state.dirty_nodes.add(made.node)
        self._state.reservations_due = True
        if pod is None:
            self.allocations.count_usage(made.uid)
        elif made.is_inherited:  # a refusal from before, as by its queue's maximum, says nothing
            if self._state.pods.state_of(pod.uid) is not PodState.BLOCKED:
                self._state.pods.move(pod.uid, PodState.QUEUED)
                self._state.waiting[pod.uid].reason = None
            self._state.pods.forget_refusal(pod.uid)
        if pod is None or (made.is_inherited and not made.holders):  # the pod starts at once
            return
        names = sorted(each.owner for each in holders_of(self._state, made))
        resources = self._state.cards.get(made.node)
        indexes = resources.indexes() if resources is not None else {}
        self._state.add_event(pod, "SliceReserved", reserved_text(pod, made, names, indexes))

    def _end(self, one: Reservation) -> None:
        """Ends a reservation, and those of its gang."""
        found = self._state.reservations
        gang = [each for each in found.values() if each.gang == one.gang] if one.gang else []
        for each in gang or filter(None, [found.get(one.uid)]):
            del self._state.reservations[each.uid]
            self._state.dirty_nodes.add(each.node)
            if each.kept_for is None:
                self._relieve(each)
            else:
                self.allocations.count_usage(each.uid)
            self._state.cluster.capacity_changes.room_may_have_grown(each.node)
        self._state.reservations_due = True

    def _relieve(self, one: Reservation) -> None:
        """Relieves the queues for which the reserved slots have counted; the pods of a gang may be of several."""
        self._state.ledger.relieved.add(one.queue[0])
        pod = self._state.cluster.pods.get(one.uid)
        if pod is None:
            self._state.pods.relieve_all()
        else:
            self._state.ledger.relieved.add(self._state.cluster.queue_of(pod))
