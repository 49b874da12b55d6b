"""Decides which pod gets which slice: takes in events, returns instructions; no I/O and no clock.

Rules:

- All input comes by :meth:`Slicer.handle`: observations of the cluster, and outcomes of writes.
- The caller calls :meth:`Slicer.decide` when events have arrived. It absorbs all of them
  (:mod:`tessera.controller.slicing.allocation_lifecycle`), and plans all waiting pods in one batch
  (:mod:`tessera.controller.slicing.planner`). Nothing is written before that.
- :meth:`Slicer.pop_writes` returns the writes that are due now (:mod:`tessera.controller.slicing.pending_writes`).
- :mod:`tessera.controller.slicing.slicer_state` documents the state.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from tessera.api.instaslice import Instaslice
from tessera.api.names import QUEUE_LABEL, PodUid
from tessera.api.pods.gangs import Gang
from tessera.api.queues import Queue
from tessera.controller.base.move_settings import NO_MOVES, MoveMode, MoveSettings
from tessera.controller.cluster.remade_pods import RemadePods
from tessera.controller.objects.node_info import read_node
from tessera.controller.objects.pod_info import PodInfo, read_pod
from tessera.controller.slicing.allocation import Allocation
from tessera.controller.slicing.allocation_lifecycle import AllocationLifecycle
from tessera.controller.slicing.batch_placement import Placed, Unplaced, first_batch
from tessera.controller.slicing.events import (
    DecisionDue,
    DenialExpired,
    InstasliceDeleted,
    InstasliceObserved,
    InstasliceUnreadable,
    InstasliceVersionsReset,
    NamespaceObserved,
    NodeDeleted,
    NodeObserved,
    PodDeleted,
    PodObserved,
    PodVersionsReset,
    QueueDeleted,
    QueueObserved,
    RefusalTimedOut,
    RetryDue,
    SlicerEvent,
    StorageListed,
    StorageObserved,
    TimePassed,
    UngateDenied,
    WriteDone,
    WriteOutcomeUnknown,
    WriteRefused,
    WritesDue,
)
from tessera.controller.slicing.fair_order import FairOrder, holding_of
from tessera.controller.slicing.gang_planner import GangPlanner
from tessera.controller.slicing.gang_reserver import GangReserver
from tessera.controller.slicing.gang_turns import Turns, take_turns
from tessera.controller.slicing.instructions import (
    Evict,
    Instruction,
    PatchRequests,
    ReportNodeCondition,
    ReportPodCondition,
    ReportQueue,
    Ungate,
    Write,
)
from tessera.controller.slicing.messages import (
    lost_slices_text,
    waiting_text,
    withdrawn_text,
)
from tessera.controller.slicing.move_finder import MoveFinder
from tessera.controller.slicing.mover import Mover
from tessera.controller.slicing.pending_writes import PendingWrites
from tessera.controller.slicing.planner import Planner
from tessera.controller.slicing.pod_kinds import MostOfKind, PodKind, kind_of
from tessera.controller.slicing.preemptor import Preemptor
from tessera.controller.slicing.reservation_rules import reservations_before, without_passed
from tessera.controller.slicing.reserver import Reserver
from tessera.controller.slicing.slicer_state import SlicerState
from tessera.kube.resources import Node, Pod
from tessera.limits.planning import BATCH_PODS, DECISION_STEPS, PASSING_PODS, RETRIED_PODS
from tessera.placement.demand import QueueFull, Reason
from tessera.placement.reserved_slots import hold_slots
from tessera.placement.step_budget import StepBudget
from tessera.replay.recorder import Decider


class Slicer(Decider[[SlicerEvent], Sequence[Instruction]]):
    """The state machine of the whole cluster's slices.

    Args:
        reserve_after: seconds that a pod waits for room before slots are reserved for it; None reserves none.
        preempts: True to evict pods of lower priority for waiting pods.
        moves: what is done to make room by moves.
        reads: True for a reader of the cluster: it keeps the reservations that the controller recorded.

    Attributes:
        state: the slicer's state; others only read it.
        planner: finds possible places without deciding.
        rooms: finds moves that make room, without deciding.
        mover: recommends or makes such moves.
        order: the order of waiting pods.
        decisions: allocations made so far; never decreases.
        steps: steps of planning taken so far; never decreases.
        moves: pods that got other slices after theirs were taken back; never decreases.
        refusals: how often planning refused a pod for a new reason, by the reason's class; never decreases.
    """

    def __init__(
        self,
        reserve_after: float | None = None,
        *,
        reads: bool = False,
        preempts: bool = False,
        moves: MoveSettings = NO_MOVES,
    ) -> None:
        self.state = self._state = SlicerState()
        #: The same object as :attr:`SlicerState.cluster`.
        self._cluster = self._state.cluster
        #: Gives pods that were made anew while they waited the age of the pods before them.
        self._remade = RemadePods()
        #: Changes allocations when an object of the cluster changed. It has no state of its own.
        self._lifecycle = AllocationLifecycle(self._state)
        self.planner = Planner(self._state)
        self._gangs = GangPlanner(self._state, self.planner)
        #: Turns the state into writes at each :class:`WritesDue`. It has no state of its own.
        self._pending = PendingWrites(self._state, self._lifecycle, self._gangs)
        self.order = FairOrder(self._state)
        self._ledger = self._state.ledger
        #: Gives slots to pods that wait for room. Its state is in :attr:`SlicerState.reservations`, but for memos.
        keeps = preempts or moves.mode is MoveMode.EVICT
        self._reserver = Reserver(self._state, self.planner, reserve_after, reads=reads, keeps=keeps)
        #: The same for gangs.
        self._gang_reserver = GangReserver(self._state, self._gangs, self._reserver, None if reads else reserve_after)
        #: Makes room for pods of higher priority; None if that is off.
        self._preemptor = Preemptor(self._state, self._reserver) if preempts else None
        self.rooms = MoveFinder(self._state, self.planner, self._reserver)
        self.mover = Mover(self._state, self._reserver, self.rooms, moves)
        #: Kinds that the present decision has refused, with the last reason.
        self._refused_kinds: dict[PodKind, Reason] = {}
        self.decisions = 0
        self.steps = 0
        self.moves = 0
        self.refusals: Counter[type[Reason]] = Counter()

    def react(self, event: SlicerEvent) -> Sequence[Instruction]:
        """Takes in an event.

        Returns:
            For :class:`WritesDue` what to write now; nothing for all other events, on which the next decision acts.
        """
        match event:
            case WritesDue():
                return self._pending.pop()
            case DecisionDue():
                self._decide()
            case _:
                self._observe(event)
        return ()

    def _observe(self, event: SlicerEvent) -> None:
        match event:
            case PodObserved(pod):
                self._put_pod(pod)
            case InstasliceObserved(item):
                self._cluster.put_object(item)
            case NodeObserved(node):
                self._cluster.put_node(node)
            case WriteDone(write):
                self._finish_write(write)
            case PodDeleted(uid):
                self._remade.forget(uid, self._cluster.pods.get(uid), self._state.now)
                self._state.gangs.drop(uid)
                self._cluster.drop_pod(uid)
            case InstasliceDeleted(name):
                self._cluster.drop_object(name)
            case NodeDeleted(name):
                self._cluster.drop_node(name)
            case StorageObserved(item, deleted):
                self._cluster.put_storage(item, deleted=deleted)
            case NamespaceObserved(name, labels):
                self._put_namespace(name, labels)
            case TimePassed(now, date):
                self._end_avoidance(now)
                self._set_date(date)
            case WriteRefused(write):
                self._note_refused_write(write)
            case WriteOutcomeUnknown():
                pass  # the record that the watch shows decides; the key stays busy until the retry
            case RetryDue(write):
                self._retry_write(write)
            case UngateDenied(write, reason):
                self._note_denial(write, reason)
            case DenialExpired(uid):
                self._end_denial(uid)
            case RefusalTimedOut(uid, avoid_until):
                self._withdraw(uid, avoid_until)
            case QueueObserved(queue):
                self._put_queue(queue)
            case QueueDeleted(name):
                self._ledger.drop(name)
                self._follow_queues()
            case InstasliceUnreadable(name, error):
                self._cluster.set_object_error(name, error)
            case PodVersionsReset():
                self._cluster.reset_pod_versions()
            case InstasliceVersionsReset():
                self._cluster.reset_instaslice_versions()
            case StorageListed():
                self._cluster.note_storage_listed()

    def _put_pod(self, pod: PodInfo) -> None:
        if pod.devices and pod.gated:
            self._use_devices()
        known = pod.uid in self._cluster.pods
        self._cluster.put_pod(self._remade.observe(pod, self._state.now, known=known))
        self._state.gangs.observe(self._cluster.pods[pod.uid])

    def _put_namespace(self, name: str, labels: Mapping[str, str] | None) -> None:
        placed = self._cluster.placed_pods
        before = (placed.namespace_label(name, QUEUE_LABEL), self._cluster.is_managed(name))
        self._cluster.put_namespace(name, labels)
        if (placed.namespace_label(name, QUEUE_LABEL), self._cluster.is_managed(name)) != before:
            self._follow_namespace(name)
        if self._cluster.is_managed(name):
            self._use_devices()

    def _use_devices(self) -> None:
        """Looks at whole cards and shares from now on: a pod waits for some, or a namespace may have such pods."""
        if not self._state.devices.used:
            self._state.devices.used = True
            self._cluster.changed_nodes |= self._cluster.nodes.keys()
            self._cluster.changed_pods |= {uid for uid, pod in self._cluster.pods.items() if pod.devices}

    def _put_queue(self, queue: Queue) -> None:
        known = self._cluster.queues.get(queue.name)
        if known is not None and known.version > queue.version:
            return
        self._ledger.put(queue, self._state.now)
        rules = (queue.weight, queue.guaranteed, queue.maximum, queue.namespaces)
        if known is None or rules != (known.weight, known.guaranteed, known.maximum, known.namespaces):
            self._follow_queues()

    def _follow_queues(self) -> None:
        """After a change of a Queue object, counts every pod for its queue again, and plans all waiting pods again."""
        self._cluster.changed_pods |= self._cluster.pods.keys()
        self._cluster.capacity_changes.room_may_have_grown_anywhere()

    def _follow_namespace(self, name: str) -> None:
        """After a change of a namespace's label, counts its pods for their queue again, and plans waiting pods again.

        Whoever creates namespaces can do this often, so pods of other namespaces are left alone.
        """
        found = {uid for uid, pod in self._cluster.pods.items() if pod.namespace == name}
        if found:
            self._cluster.changed_pods |= found
            self._cluster.capacity_changes.room_may_have_grown_anywhere()

    def pop_writes(self) -> Sequence[Instruction]:
        """Returns the instructions to carry out now. Each write is in flight until the slicer handles its outcome."""
        return self.handle(WritesDue())

    # Outcomes of writes

    def _finish_write(self, write: Write) -> None:
        if isinstance(write, ReportNodeCondition):
            self._state.reported_objects[write.node] = write.text
        elif isinstance(write, PatchRequests):
            for uid in write.drop:
                allocation = self._state.allocations.get(write.node, uid)
                if allocation is not None:
                    allocation.sent = False
        self._state.busy.discard(write.key)
        self._mark_affected(write)

    def _note_refused_write(self, write: Write) -> None:
        if isinstance(write, PatchRequests):
            for uid in write.put:
                allocation = self._state.allocations.get(write.node, uid)
                if allocation is not None:
                    allocation.sent = False
        elif isinstance(write, Evict):
            self.mover.note_refusal(write.uid)

    def _retry_write(self, write: Write) -> None:
        self._state.busy.discard(write.key)
        self._mark_affected(write)

    def _note_denial(self, write: Ungate, reason: str) -> None:
        self._state.busy.discard(write.key)
        pod = self._cluster.pods.get(write.uid)
        if pod is None:
            return
        self._state.denied[write.uid] = pod
        text = f"The pod cannot be pinned to its node: {reason}"
        self._lifecycle.record_event(pod, "SliceRefused", text, warning=True)
        allocation = self._state.allocations.current_of(write.uid)
        if allocation is not None:
            self._lifecycle.give_up(allocation)

    def _end_denial(self, uid: PodUid) -> None:
        if self._state.denied.pop(uid, None) is not None:
            self._cluster.changed_pods.add(uid)

    def _withdraw(self, uid: PodUid, avoid_until: float) -> None:
        pod, allocation = self._cluster.pods.get(uid), self._state.allocations.current_of(uid)
        if pod is None or allocation is None or uid not in self._state.refused_pods or ("pod", uid) in self._state.busy:
            return
        if pod.node and uid in self._state.withdrawn:
            return
        served = not self._lifecycle.agent_is_down(allocation.node)
        # Cards that a pod of another namespace took count as taken, so the node needs no avoidance.
        outrun = any(f"Insufficient {each}" in pod.unschedulable_message for each in set(pod.devices))
        avoided = served and not outrun
        text = withdrawn_text(pod, allocation.node, avoided=avoided)
        stays = bool(pod.node) and not pod.owner
        self._lifecycle.record_event(pod, "AgentNotReady" if stays else "SliceReclaimed", text, warning=True)
        if pod.owner:
            if avoided:
                self._state.avoidance.add(pod.owner, allocation.node, avoid_until)
            self._state.evictions[uid] = Evict(uid=uid, namespace=pod.namespace, name=pod.name, version=pod.version)
        else:
            self._state.withdrawn[uid] = text
            self._state.pods_to_report.add(uid)
            if not stays:
                self._lifecycle.give_up(allocation)

    def _end_avoidance(self, now: float) -> None:
        for node in self._state.avoidance.expire(now):
            self._cluster.capacity_changes.room_may_have_grown(node)

    def _set_date(self, date: float) -> None:
        self._state.now = date
        preemption = self._preemptor.next_due if self._preemptor is not None else None
        dates = (self._reserver.next_due, self._gang_reserver.next_due, preemption, self.mover.next_due)
        self._state.reservations_due |= any(due is not None and due <= date for due in dates)

    def _mark_affected(self, write: Write) -> None:
        if isinstance(write, Evict | ReportQueue):
            return
        if isinstance(write, ReportPodCondition):
            self._state.pods_to_report.add(write.uid)
        elif isinstance(write, Ungate):
            self._cluster.changed_pods.add(write.uid)  # no decision reviewed the promise while the write was in flight
            allocation = self._state.allocations.current_of(write.uid)
            if allocation is not None:
                self._state.dirty_nodes.add(allocation.node)
        else:
            self._state.dirty_nodes.add(write.node)

    # Deciding

    @property
    def next_due(self) -> float | None:
        """The time, seconds since 1970, at which time alone makes a step due; None if never."""
        preemption = self._preemptor.next_due if self._preemptor is not None else None
        reservations = (self._reserver.next_due, self._gang_reserver.next_due)
        due = (*reservations, self._pending.queue_reports.next_due, preemption, self.mover.next_due)
        return min((each for each in due if each is not None), default=None)

    @property
    def has_work(self) -> bool:
        """True if a decision is due."""
        if (
            self._state.reservations_due
            or self._cluster.changed_nodes
            or self._cluster.changed_pods
            or (self._cluster.dependencies_changed and self._state.dependent)
        ):
            return True
        return self._cluster.capacity_changes.concerns_any_of(self._state.waiting)

    def decide(self) -> None:
        """Absorbs the observations, then plans waiting pods, as many as one step may cost.

        While :attr:`has_work` is True, there is more to do; the process does other work in between.
        """
        self.handle(DecisionDue())

    def _decide(self) -> None:
        self._find_orphans()
        nodes, self._cluster.changed_nodes = self._cluster.changed_nodes, set()
        if nodes:
            self._state.serving_nodes.clear()
        for node in sorted(nodes):
            self._lifecycle.absorb_node(node)
        self._lifecycle.recount_devices()
        pods, self._cluster.changed_pods = self._cluster.changed_pods, set()
        for uid in sorted(pods):
            self._lifecycle.absorb_pod(uid)
            self.mover.observe(uid)
        self._replan_dependent_pods()
        self._review_gangs()
        self._retry_limited_pods()
        self._reserver.begin(nodes)
        self._gang_reserver.begin(nodes)
        self._resume_gangs()
        changes = self._cluster.capacity_changes
        for uid in self._state.reservations:
            changes.separate(uid)
        candidates = dict.fromkeys(changes.candidates(self._state.waiting, MostOfKind(self._state)))
        for uid in self._state.reservations:  # a pod with a reservation goes first, in every round
            if uid in self._state.waiting and changes.is_due(uid):
                candidates[uid] = None
        if candidates:
            ordered, held_back = self.order.first((self._cluster.pods[uid] for uid in candidates), BATCH_PODS)
            turns = take_turns(first_batch(ordered), (self._cluster.pods[uid] for uid in held_back), self._gangs)
            holds = [hold for each in self._state.reservations.values() for hold in each.holds]
            with hold_slots(self._state.inventory.fleet, holds):  # parts of the batch change few of them
                self._plan(turns, held_back)
            self._share_reasons()
            self._hold_back({uid: why for uid, why in held_back.items() if uid not in turns.members})
        if self._state.reservations_due:
            self._gang_reserver.end()
        self._reserver.end()
        if self._preemptor is not None:
            self._preemptor.run()
        self.mover.run()

    def _find_orphans(self) -> None:
        """Notes objects of nodes that were deleted while no controller led. Runs once, at the start."""
        if not self._state.orphans_found:
            self._state.orphans_found = True
            for node in sorted(self._cluster.objects.keys() - self._cluster.nodes.keys()):
                self._cluster.note_orphan(node)

    def _hold_back(self, held_back: Mapping[PodUid, QueueFull]) -> None:
        """Refuses pods for which their queue has no room, unless pods before them were refused and left room."""
        for uid, reason in held_back.items():
            pod = self._cluster.pods[uid]
            above = self._ledger.is_above_maximum(reason.queue, holding_of(self._state, pod))
            # an older pod of the queue that waits for its maximum goes first
            if reason.never or above or self._state.limited.first_of(reason.queue, 1):
                self._record_refusal(pod, reason, dependent=False)
                if not reason.never:
                    self._state.limited.put(pod, (reason.queue, ()))

    def _retry_limited_pods(self) -> None:
        """Lets pods of queues whose pods hold less be planned again, the first ones."""
        for queue in sorted(self._ledger.relieved):
            for uid in self._state.limited.first_of(queue, RETRIED_PODS):
                self._state.limited.discard(uid)
                self._cluster.capacity_changes.forget_refusal(uid)
        self._ledger.relieved.clear()

    def _review_gangs(self) -> None:
        """Takes back what incomplete gangs hold, and lets the pods of changed gangs be planned again."""
        changed, self._state.gangs.changed = self._state.gangs.changed, set()
        for key in sorted(changed):
            for allocation in self._gangs.holdings_to_return(key):
                self._lifecycle.give_up(allocation)
            for uid in self._state.gangs.members(key):
                self._cluster.capacity_changes.forget_refusal(uid)

    def _resume_gangs(self) -> None:
        """Places the rest of gangs with whole cards that were leaving the gate when the last controller ended.

        Their places are on no record. Nobody has decided since, so they are still free: these pods go before all
        others. Runs once, at the start.
        """
        if self._state.gangs_resumed:
            return
        self._state.gangs_resumed = True
        waiting = (self._cluster.pods[uid] for uid in self._state.waiting)
        found = (self._gangs.gang_of(pod) for pod in waiting if pod.devices)
        for gang in {each.key: each for each in found if each is not None}.values():
            state = self._gangs.look(gang)
            if state.begun and state.missing and state.is_complete:
                self._plan_gang(gang, {}, StepBudget(DECISION_STEPS))

    def _plan(self, turns: Turns, held_back: Mapping[PodUid, QueueFull]) -> None:
        """Plans a batch in parts: each pod with a reservation and each gang by itself, the pods between together."""
        work = StepBudget(DECISION_STEPS)
        if any(pod.devices for pod in turns.pods):
            self._state.prices.update()
        passing: list[PodInfo] = []
        for number, part in enumerate(self._parts(turns)):
            if number and work.is_spent:
                break
            gang = turns.gangs.get(part[0].uid)
            if gang is not None:
                self._plan_gang(gang, held_back, work)
            else:
                passing += self._plan_part(part, work)
        self._let_pass(passing, work)
        self.steps += DECISION_STEPS - work.remaining

    def _parts(self, turns: Turns) -> Iterator[list[PodInfo]]:
        """Yields the pods in order; those of one part leave the same reservations alone."""
        for _, part in groupby(turns.pods, key=lambda pod: self._part_key(pod, turns)):
            yield list(part)

    def _part_key(self, pod: PodInfo, turns: Turns) -> tuple[PodUid | None, int]:
        by_itself = pod.uid in self._state.reservations or pod.uid in turns.gangs
        return (pod.uid if by_itself else None, len(reservations_before(self._state, pod)))

    def _plan_gang(self, gang: Gang, held_back: Mapping[PodUid, QueueFull], work: StepBudget) -> None:
        """Gives all missing pods of a gang their slices, or none; then the gang holds nothing behind the gate."""
        found = self._gangs.plan(gang, held_back, work)
        for one in found.placed:
            self._allocate(one)
        for uid, dependent in found.refused.items():
            pod = self._cluster.pods[uid]
            self._record_refusal(pod, found.reason, dependent=dependent)
            if isinstance(found.reason, QueueFull) and not found.reason.never:
                self._state.limited.put(pod, (found.reason.queue, ()))
        for allocation in found.returned:
            self._lifecycle.give_up(allocation)
        self._gang_reserver.note(gang, found.reason)

    def _plan_part(self, pods: list[PodInfo], work: StepBudget) -> list[PodInfo]:
        """Plans pods together. If the first that finds no place gets a reservation, plans the others around it.

        Returns:
            The refused pods that could use reserved slots, since they end in time.
        """
        passing: list[PodInfo] = []
        while pods:
            reserved = reservations_before(self._state, pods[0])
            since = {pod.uid: self._cluster.capacity_changes.nodes_changed_since_refusal(pod.uid) for pod in pods}
            found, dependent = self.planner.plan_beside(reserved, pods, since, work)
            refused = [one for one in found if isinstance(one, Unplaced)]
            head = self._reserver.head_of((one.pod, one.reason) for one in refused)
            for one in found:
                if head is None and isinstance(one, Placed):
                    self._allocate(one)
                elif isinstance(one, Unplaced) and (head is None or head is one.pod):
                    self._record_refusal(one.pod, one.reason, dependent=one.pod.uid in dependent)
                    self._note_kind(one.pod, one.reason)
                    if len(without_passed(self._state, one.pod, reserved)) < len(reserved):
                        passing.append(one.pod)
            if head is None:
                break
            pods = [pod for pod in pods if pod is not head]
        return passing

    def _let_pass(self, pods: Sequence[PodInfo], work: StepBudget) -> None:
        """Plans pods with deadlines on the slots of reservations that they do not delay."""
        for pod in pods[:PASSING_PODS]:
            if work.is_spent or pod.uid not in self._state.waiting:
                return
            before = reservations_before(self._state, pod)
            left = without_passed(self._state, pod, before)
            found, _ = self.planner.plan_beside(left, [pod], {}, work)
            for one in found:
                if isinstance(one, Placed):
                    self._allocate(one)
                    for each in before:
                        if each not in left:
                            each.holders.add(pod.uid)
                            self._state.dirty_nodes.add(each.node)

    def _note_kind(self, pod: PodInfo, reason: Reason | None) -> None:
        """Notes that the refusal of a pod answers for its kind."""
        kind = kind_of(self._state, pod) if pod.uid in self._state.waiting else None
        if kind is not None:
            self._cluster.capacity_changes.note_refusal_of_kind(pod, kind)
            if reason is not None:
                self._refused_kinds[kind] = reason

    def _share_reasons(self) -> None:
        """Gives the reason of a refused pod to the pods of its kind that were not asked.

        A pod whose reason becomes one of another class is refused like the first, with an event. Of more such pods than
        one batch has, the others are planned in further decisions.
        """
        reasons, self._refused_kinds = self._refused_kinds, {}
        left = int(BATCH_PODS)
        for kind, reason in reasons.items():
            for uid in self._cluster.capacity_changes.pods_of_kind(kind):
                if type(self._state.waiting[uid]) is type(reason):
                    self._state.waiting[uid] = reason
                elif left > 0:
                    left -= 1
                    pod = self._cluster.pods[uid]
                    self._record_refusal(pod, reason, dependent=False)
                    self._note_kind(pod, None)
                else:
                    self._cluster.capacity_changes.forget_refusal(uid)

    def _replan_dependent_pods(self) -> None:
        """After a change of pods or volumes, plans dependent pods again on all nodes."""
        if self._cluster.dependencies_changed:
            self._cluster.dependencies_changed = False
            for uid in self._state.dependent:
                self._cluster.capacity_changes.forget_refusal(uid)

    def _allocate(self, placed: Placed) -> None:
        pod = placed.pod
        by_pod = bool(pod.devices)
        allocation = Allocation(
            placed.node, pod.uid, pod.namespace, pod.name, placed.slices, pod.amounts, by_pod=by_pod
        )
        taken = self._state.inventory.occupy(allocation)
        assert taken, f"planned slots of {pod.key} on {placed.node} are taken"
        if pod.gated and self._state.waiting.get(pod.uid) is not None:
            self._state.handed_over.add(pod.uid)
        if pod.uid in self._state.displaced:
            self._state.displaced.remove(pod.uid)
            self.moves += 1
        self._lifecycle.add(allocation)
        self._state.reservations_due |= bool(self._state.reservations)
        self.decisions += 1

    def _record_refusal(self, pod: PodInfo, reason: Reason | None, *, dependent: bool) -> None:
        self._cluster.capacity_changes.note_refusal(pod.uid)
        if pod.gated and self.planner.only_fixed_layouts_serve(pod):
            self._lifecycle.stop_waiting(pod.uid)
            self._state.pods_to_ungate.add(pod.uid)
            return
        if dependent:
            self._state.dependent.add(pod.uid)
            self._cluster.placed_pods.watch(pod.uid, pod.relations)
        if reason is None:
            return
        self._state.waiting[pod.uid] = reason
        self._reserver.note_refusal(pod, reason)
        if self._state.last_event.get(pod.uid) == type(reason).__name__:
            return
        self._state.last_event[pod.uid] = type(reason).__name__
        self.refusals[type(reason)] += 1
        if self._cluster.required_node(pod) is None:
            self._lifecycle.record_event(pod, "SliceWaiting", waiting_text(pod, reason))
        else:
            self._lifecycle.record_event(pod, "SliceLost", lost_slices_text(pod, reason), warning=True)


def slicer_from_objects(
    pods: Iterable[Pod], nodes: Iterable[Node], instaslices: Iterable[Instaslice], now: float = 0.0
) -> Slicer:
    """Returns the slicer that follows from stored objects, after all waiting pods were planned once.

    Args:
        pods: all pods.
        nodes: all nodes.
        instaslices: the nodes' objects.
        now: when they were read, seconds since 1970.
    """
    slicer = Slicer(reads=True)
    slicer.handle(TimePassed(now, now))
    for node in nodes:
        slicer.handle(NodeObserved(read_node(node)))
    for pod in pods:
        slicer.handle(PodObserved(read_pod(pod)))
    for item in instaslices:
        slicer.handle(InstasliceObserved(item))
    slicer.decide()
    while slicer.has_work:
        slicer.decide()
    return slicer
