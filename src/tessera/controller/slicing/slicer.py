"""Decides which pod gets which slice: takes in events, returns instructions; no I/O and no clock.

Rules:

- All input comes by :meth:`Slicer.handle`: observations of the cluster, and outcomes of writes.
- The caller calls :meth:`Slicer.decide` when events have arrived. It absorbs all of them, or some of many
  (:mod:`tessera.controller.slicing.turns.absorption`), and then plans all waiting pods in one batch
  (:mod:`tessera.controller.slicing.turns.turn_planner`). Nothing is written before that. Where more changes between
  any two steps than one takes in, events are held meanwhile (:mod:`tessera.controller.slicing.turns.backlog`).
- Others read the state between two steps only while :attr:`Slicer.is_caught_up` is True: before, nodes and pods are
  missing in it.
- :meth:`Slicer.pop_writes` returns the writes that are due now
  (:mod:`tessera.controller.slicing.turns.pending_writes`).
- :mod:`tessera.controller.slicing.state.slicer_state` documents the state.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from tessera.api.names import LAST_GATES, QUEUE_LABEL, NodeName, PodUid
from tessera.api.queues import Queue
from tessera.controller.base.move_settings import NO_MOVES, MoveMode, MoveSettings
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.slicing.evictions.move_finder import MoveFinder
from tessera.controller.slicing.evictions.mover import Mover
from tessera.controller.slicing.evictions.overstays import Overstays
from tessera.controller.slicing.evictions.preemptor import Preemptor
from tessera.controller.slicing.evictions.unbound_pods import UnboundPods
from tessera.controller.slicing.gangs.gang_planner import GangPlanner
from tessera.controller.slicing.planning.allocation_lifecycle import AllocationLifecycle
from tessera.controller.slicing.planning.fair_order import FairOrder
from tessera.controller.slicing.planning.planner import Planner
from tessera.controller.slicing.planning.pod_kinds import MostOfKind
from tessera.controller.slicing.reservations.gang_reserver import GangReserver
from tessera.controller.slicing.reservations.reserver import Reserver
from tessera.controller.slicing.state.events import (
    DecisionDue,
    DenialExpired,
    EndsExpected,
    InstasliceDeleted,
    InstasliceObserved,
    InstasliceUnreadable,
    InstasliceVersionsReset,
    LastGatesObserved,
    NamespaceObserved,
    NodeDeleted,
    NodeObserved,
    OwnerLookedUp,
    PodDeleted,
    PodGroupObserved,
    PodGroupsListed,
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
from tessera.controller.slicing.state.instructions import Instruction
from tessera.controller.slicing.state.refusals import competes_for_room
from tessera.controller.slicing.state.slicer_state import SlicerState
from tessera.controller.slicing.state.waiting_pod import PodState
from tessera.controller.slicing.turns.absorption import Absorption
from tessera.controller.slicing.turns.backlog import EventBacklog
from tessera.controller.slicing.turns.pending_writes import PendingWrites
from tessera.controller.slicing.turns.turn_planner import TurnPlanner
from tessera.controller.slicing.turns.verdicts import Verdicts
from tessera.controller.slicing.turns.write_outcomes import WriteOutcomes
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
        #: Changes allocations when an object of the cluster changed. It has no state of its own.
        self._lifecycle = AllocationLifecycle(self._state)
        self.planner = Planner(self._state)
        self._gangs = GangPlanner(self._state, self.planner)
        #: Turns the state into writes at each :class:`WritesDue`. It has no state of its own.
        self._pending = PendingWrites(self._state, self._lifecycle, self._gangs)
        self.order = FairOrder(self._state, self.planner)
        self._ledger = self._state.ledger
        #: Memory slots of all cards by model, as the last decision found them.
        self._totals: Mapping[str, int] = {}
        keeps = preempts or moves.mode is MoveMode.EVICT
        #: Gives slots to pods that wait for room. Its state is in :attr:`SlicerState.reservations`, but for memos.
        self._reserver = Reserver(self._state, self.planner, reserve_after, reads=reads, keeps=keeps)
        #: The same for gangs.
        self._gang_reserver = GangReserver(self._state, self._gangs, self._reserver, None if reads else reserve_after)
        #: Makes room for pods of higher priority; None if that is off.
        self._preemptor = Preemptor(self._state, self._reserver) if preempts else None
        self.rooms = MoveFinder(self._state, self.planner, self._reserver)
        self.mover = Mover(self._state, self._reserver, self.rooms, moves)
        self._overstays = Overstays(self._state)
        self._unbound = UnboundPods(self._state, self._lifecycle)
        self._absorption = Absorption(self._state, self._lifecycle, self.mover, (self._overstays, self._unbound))
        #: Events that are taken in before the next step that does not follow on a held one.
        self._backlog = EventBacklog()
        self._verdicts = Verdicts(self._state, self._lifecycle, self.planner, self._reserver)
        self._turns = TurnPlanner(
            self._state,
            self._lifecycle,
            self.planner,
            self._gangs,
            order=self.order,
            reserver=self._reserver,
            gang_reserver=self._gang_reserver,
            verdicts=self._verdicts,
        )
        self._outcomes = WriteOutcomes(self._state, self._lifecycle, self.mover, self._unbound)

    def react(self, event: SlicerEvent) -> Sequence[Instruction]:
        """Takes in an event.

        Returns:
            For :class:`WritesDue` what to write now; nothing for all other events, on which the next decision acts.
        """
        match event:
            case WritesDue():
                return self._pending.pop() if self._absorption.is_done else ()
            case DecisionDue():
                self._decide()
            case TimePassed():
                self._observe(event)
            case _ if self._absorption.holds_events or self._backlog:
                self._backlog.add(event)
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
                if self._state.devices.used:
                    self._state.ratings.note(node.name)  # also after a change that wakes no pod
            case WriteDone(write):
                self._outcomes.finish(write)
            case PodDeleted(uid):
                self._drop_pod(uid)
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
            case EndsExpected(ends):
                self._state.expect_ends(ends)
            case WriteRefused(write, reason):
                self._outcomes.note_refusal(write, reason)
            case WriteOutcomeUnknown(write):
                self._outcomes.note_no_answer(write)
            case RetryDue(write):
                self._outcomes.retry(write)
            case UngateDenied(write, reason):
                self._outcomes.deny(write, reason)
            case DenialExpired(uid):
                self._outcomes.end_denial(uid)
            case RefusalTimedOut(uid, avoid_until):
                self._outcomes.withdraw(uid, avoid_until)
            case OwnerLookedUp(owner, exists):
                for uid in self._state.ages.judge(owner, exists=exists):
                    self._put_pod(self._cluster.pods[uid])
            case QueueObserved() | QueueDeleted() | PodGroupObserved() | PodGroupsListed() | LastGatesObserved():
                self._observe_others(event)
            case InstasliceUnreadable(name, error):
                self._cluster.set_object_error(name, error)
            case PodVersionsReset():
                self._cluster.reset_pod_versions()
            case InstasliceVersionsReset():
                self._cluster.reset_instaslice_versions()
            case StorageListed():
                self._cluster.note_storage_listed()

    def _observe_others(
        self, event: QueueObserved | QueueDeleted | PodGroupObserved | PodGroupsListed | LastGatesObserved
    ) -> None:
        """Takes in what others say about pods: queues, sizes of gangs, and whose gates go after ours."""
        match event:
            case QueueObserved(queue):
                self._put_queue(queue)
            case QueueDeleted(name):
                self._ledger.drop(name)
                self._follow_queues()
            case PodGroupObserved(key, size):
                self._state.gangs.put_group(key, size)
            case PodGroupsListed(served):
                self._state.gangs.note_groups(served=served)
            case LastGatesObserved(gates):
                self._set_last_gates(gates)

    def _put_pod(self, pod: PodInfo) -> None:
        if pod.devices and pod.gated:
            self._use_devices()
        if not self._state.last_gates.issuperset(LAST_GATES) and pod.gates:
            pod = replace(pod, last_gates=self._state.last_gates)
        known = pod.uid in self._cluster.pods
        competes = pod.terminating and self._competes(pod.uid)
        self._cluster.put_pod(self._state.ages.observe(pod, self._state.now, known=known, competes=competes))
        self._state.gangs.observe(self._cluster.pods[pod.uid])

    def _drop_pod(self, uid: PodUid) -> None:
        pod = self._cluster.pods.get(uid)
        self._state.ages.forget(uid, pod, self._state.now, competes=self._competes(uid))
        self._state.gangs.drop(uid)
        self._cluster.drop_pod(uid)

    def _competes(self, uid: PodUid) -> bool:
        """True if planning found that a waiting pod lacks nothing but room."""
        reason = self._state.pods.reason_of(uid)
        return reason is not None and competes_for_room(reason) and not self._state.ages.is_idle(uid)

    def _settle_ages(self, uids: Iterable[PodUid]) -> None:
        """Before pods are planned, takes the time off their ages for which no node could take them."""
        for uid in uids:
            if self._state.ages.is_idle(uid):
                self._cluster.pods[uid] = self._state.ages.settle(self._cluster.pods[uid], self._state.now)

    def _set_last_gates(self, gates: frozenset[str]) -> None:
        if self._state.last_gates != gates:
            self._state.last_gates = gates
            for pod in list(self._cluster.pods.values()):
                if not LAST_GATES.keys().isdisjoint(pod.gates):
                    self._put_pod(replace(pod, last_gates=gates))

    def _put_namespace(self, name: str, labels: Mapping[str, str] | None) -> None:
        placed = self._cluster.placed_pods
        before = (placed.namespace_label(name, QUEUE_LABEL), self._cluster.is_managed(name))
        self._cluster.put_namespace(name, labels)
        if (placed.namespace_label(name, QUEUE_LABEL), self._cluster.is_managed(name)) != before:
            self._follow_namespace(name)
        if self._cluster.is_managed(name):
            self._use_devices()

    def _use_devices(self) -> None:
        """Looks at whole cards and shares from now on: a pod waits for some, or a namespace is managed."""
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
        self._state.pods.relieve_all()

    def _follow_namespace(self, name: str) -> None:
        """After a change of a namespace's label, counts its pods for their queue again, and plans waiting pods again.

        Whoever creates namespaces can do this often, so pods of other namespaces are left alone.
        """
        found = {uid for uid, pod in self._cluster.pods.items() if pod.namespace == name}
        if found:
            self._cluster.changed_pods |= found
            self._cluster.capacity_changes.room_may_have_grown_anywhere()
            self._state.pods.relieve_all()  # what is reserved for these pods counts for another queue now

    def pop_writes(self) -> Sequence[Instruction]:
        """Returns the instructions to carry out now. Each write is in flight until the slicer handles its outcome."""
        return self.handle(WritesDue())

    def _end_avoidance(self, now: float) -> None:
        changes = self._cluster.capacity_changes
        for node in self._state.avoidance.expire(now):
            changes.room_may_have_grown(node)
        owners = self._state.avoidance.expire_pauses(now)
        for uid in self._state.waiting if owners else ():
            if self._cluster.pods[uid].owner in owners:
                self._state.pods.forget_refusal(uid)

    def _set_date(self, date: float) -> None:
        self._state.now = date
        preemption = self._preemptor.next_due if self._preemptor is not None else None
        dates = (self._reserver.next_due, self._gang_reserver.next_due, preemption, self.mover.next_due)
        self._state.reservations_due |= any(due is not None and due <= date for due in dates)

    # Counters

    @property
    def decisions(self) -> int:
        """Allocations made so far; never decreases."""
        return self._verdicts.decisions

    @property
    def moves(self) -> int:
        """Pods that got other slices after theirs were taken back; never decreases."""
        return self._verdicts.moves

    @property
    def refusals(self) -> Mapping[str, int]:
        """How often planning refused a pod for a new reason, by the reason's word; never decreases."""
        return self._verdicts.refusals

    @property
    def steps(self) -> int:
        """Steps of planning taken so far; never decreases."""
        return self._turns.steps

    # Deciding

    @property
    def next_due(self) -> float | None:
        """The time, seconds since 1970, at which time alone makes a step due; None if never."""
        preemption = self._preemptor.next_due if self._preemptor is not None else None
        reservations = (self._reserver.next_due, self._gang_reserver.next_due)
        evictions = (preemption, self.mover.next_due, self._overstays.next_due, self._unbound.next_due)
        due = (*reservations, self._pending.queue_reports.next_due, *evictions)
        return min((each for each in due if each is not None), default=None)

    @property
    def has_work(self) -> bool:
        """True if a decision is due."""
        if (
            not self._absorption.is_done
            or self._backlog
            or self._pending.is_behind
            or self._state.reservations_due
            or self._overstays.are_due
            or self._unbound.are_due
            or self._cluster.changed_nodes
            or self._cluster.changed_pods
            or self._state.gangs.changed
            or self._state.pods.is_relief_due
            or self.order.refusals.is_behind
            or (self._cluster.dependencies_changed and self._awaits_dependencies)
        ):
            return True
        return self._state.pods.are_due

    @property
    def _awaits_dependencies(self) -> bool:
        return bool(self._state.pods.limited) or any(one.dependent for one in self._state.waiting.values())

    @property
    def is_caught_up(self) -> bool:
        """True if the state lacks no more nodes and pods than the next step takes in.

        It is False before the first decision, and while many changes are taken in by parts.
        """
        return self._absorption.has_begun and self._absorption.is_done and self._absorption.are_few

    @property
    def has_news(self) -> bool:
        """True if a node has changed, or may have, since the state was made."""
        return bool(self._cluster.changed_nodes) or bool(self._backlog)

    def knows_pod(self, uid: PodUid) -> bool:
        """True if a pod was observed, and not its deletion."""
        return uid in self._cluster.pods and not self._backlog.deletes_pod(uid)

    def knows_object(self, node: NodeName) -> bool:
        """True if the Instaslice object of a node was observed, and not its deletion."""
        return node in self._cluster.objects and not self._backlog.deletes_object(node)

    def decide(self) -> None:
        """Absorbs the observations, then plans waiting pods, as much of both as one step may cost.

        While :attr:`has_work` is True, there is more to do; the process does other work in between.
        """
        self.handle(DecisionDue())

    def _decide(self) -> None:
        if self._backlog and not self._absorption.holds_events:
            for event in self._backlog.pop():
                self._observe(event)
        self._find_orphans()
        self._absorption.step()
        if not self._absorption.is_done:
            return
        nodes = self._absorption.pop_nodes()
        dependent = self._cluster.dependencies_changed
        if self.order.refusals.begin(nodes_changed=bool(nodes), dependencies_changed=dependent):
            self._release_refused_pods()
        self._replan_dependent_pods()
        self._turns.review_gangs()
        self._retry_limited_pods()
        self._reserver.begin(nodes)
        self._gang_reserver.begin(nodes)
        self._turns.resume_gangs()
        pods = self._state.pods
        for uid in self._state.reservations:
            pods.separate(uid)
        candidates = dict.fromkeys(pods.next_in_round(MostOfKind(self._state)))
        for uid in self._state.reservations:  # a pod with a reservation goes first, in every round
            if uid in self._state.waiting and pods.is_due(uid):
                candidates[uid] = None
        self._settle_ages(candidates)
        self._turns.plan(candidates)
        if self._state.reservations_due:
            self._gang_reserver.end()
        self._reserver.end()
        if self._preemptor is not None:
            self._preemptor.run()
        self.mover.run()
        self._overstays.run()
        self._unbound.run()

    def _find_orphans(self) -> None:
        """Notes objects of nodes that were deleted while no controller led. Runs once, at the start."""
        if not self._state.orphans_found:
            self._state.orphans_found = True
            for node in sorted(self._cluster.objects.keys() - self._cluster.nodes.keys()):
                self._cluster.note_orphan(node)

    def _release_refused_pods(self) -> None:
        """After a change of nodes, pods or volumes, lets no pod that all nodes refuse now close its queue any more."""
        firsts = [self._cluster.pods[uid] for _, uids in self._state.pods.limited.heads() for uid in uids[:1]]
        for pod in self.order.refused_by_all_nodes(firsts) if firsts else ():
            self._state.pods.move(pod.uid, PodState.QUEUED)
            self._state.pods.forget_refusal(pod.uid)

    def _retry_limited_pods(self) -> None:
        """Lets the first pods of relieved queues be planned again.

        A pod that several models suit counts with the one of which it takes the least share, so a change of the
        numbers of cards may change what any pod would hold.
        """
        totals = dict(self._state.inventory.totals)
        if totals != self._totals:
            self._totals = totals
            self._state.pods.relieve_all()
        self._state.pods.relieve()

    def _replan_dependent_pods(self) -> None:
        """After a change of pods or volumes, plans dependent pods again on all nodes."""
        if self._cluster.dependencies_changed:
            self._cluster.dependencies_changed = False
            for uid, one in self._state.waiting.items():
                if one.dependent:
                    self._state.pods.forget_refusal(uid)
