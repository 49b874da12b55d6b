"""Step 5: carries out what was proposed, one proposal before the next is made."""

from collections import Counter
from collections.abc import Hashable, Iterable
from functools import partial

from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.slicing.planning.allocations import Allocations
from tessera.controller.slicing.planning.batch_placement import Placed
from tessera.controller.slicing.planning.planner import Planner
from tessera.controller.slicing.planning.pod_kinds import kind_of
from tessera.controller.slicing.planning.proposals import (
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
from tessera.controller.slicing.state.allocation import Allocation
from tessera.controller.slicing.state.messages import lost_slices_text, reserved_text, waiting_text
from tessera.controller.slicing.state.move_record import RecordedMove
from tessera.controller.slicing.state.reservation import Reservation
from tessera.controller.slicing.state.reservation_rules import holders_of, queue_key
from tessera.controller.slicing.state.slicer_state import SlicerState
from tessera.controller.slicing.state.waiting_pod import PodState, competes_for_room
from tessera.limits import BATCH_PODS
from tessera.reasons.reason import NoNode, Reason


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
            state.add_event(pod, "SliceLost", lost_slices_text(pod, reason), warning=True)

    def _waiting_text(self, pod: PodInfo, reason: Reason) -> str:
        """Returns the text once for all pods that readers of one namespace see wait for the same slices and reason."""
        key = (id(reason), pod.namespace, pod.profiles)
        known = self._texts.get(key)
        if known is None:
            known = self._texts[key] = (reason, waiting_text(pod, reason))  # no other reason has this id meanwhile
        return known[1]

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
        self._state.add_event(pod, "SliceReserved", reserved_text(pod, made, names))

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
