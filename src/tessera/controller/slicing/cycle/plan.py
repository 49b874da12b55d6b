"""Step 4: plans the waiting pods at the head of the order.

They have parts. A pod with a reservation is a part by itself, and so is a gang; the pods between are packed together,
as far as they leave the same reservations alone. A pod that ends in time may be backfilled onto slots that are
reserved for others.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import takewhile

from tessera.api.names import NodeName, PodUid
from tessera.api.pod_annotations import Gang
from tessera.controller.objects.pod_info import PodInfo, Record
from tessera.controller.slicing.batch_placement import Placed
from tessera.controller.slicing.cycle.order import Heads
from tessera.controller.slicing.gangs import GangPlanner, Turns, take_turns
from tessera.controller.slicing.kinds import Kinds
from tessera.controller.slicing.lasting_refusals import LastingRefusal
from tessera.controller.slicing.planner import Planner
from tessera.controller.slicing.proposals import (
    Backfill,
    KindRefusal,
    Proposal,
    Proposer,
    Refusal,
    Return,
)
from tessera.controller.slicing.proposers.reserver import Reserver
from tessera.controller.slicing.state.node_records import Reservation
from tessera.controller.slicing.state.reservation_rules import (
    add_holdings,
    holders_of,
    holding_of,
    reservations_before,
    reservations_delayed_by,
    reserved_for_others,
)
from tessera.controller.slicing.state.slicer_state import SlicerState
from tessera.controller.slicing.state.waiting_pods import Rank, rank
from tessera.limits import DECISION_STEPS
from tessera.placement.demand import StepBudget
from tessera.placement.reserved_slots import hold_slots
from tessera.reasons.reason import QueueFull, Reason

#: Most pods with a deadline that one decision tries on reserved slots that they leave in time. Each is planned by
#: itself; the others wait like pods without a deadline.
BACKFILLED_PODS = 16


@dataclass(slots=True)
class _Run:
    """The first pods while they are planned.

    Attributes:
        turns: who is planned, in order.
        limited: pods for which their queue has no room if all pods before them are placed.
        queues: queues of which pods are planned, or left to the next decision.
        first_above: by queue, the rank of the first pod that it cannot hold whatever is placed.
        refused_kinds: kinds that were refused, with the last reason.
        heirs: the same of pods that wait for slots reserved for them.
    """

    turns: Turns
    limited: Mapping[PodUid, QueueFull]
    queues: AbstractSet[str] = frozenset()
    first_above: dict[str, Rank] = field(default_factory=dict)
    refused_kinds: dict[Hashable, Reason] = field(default_factory=dict)
    heirs: dict[Hashable, Reason] = field(default_factory=dict)


class Plan(Proposer):
    """Plans pods and gangs.

    Args:
        state: the slicer's state.
        planner: finds places for pods.
        gangs: finds places for gangs.
        reserver: makes reservations for pods that find no place; None if there are none.
        kinds: bring their estimates up to date.
    """

    def __init__(
        self,
        state: SlicerState,
        planner: Planner,
        gangs: GangPlanner,
        reserver: Reserver | None,
        kinds: Kinds,
    ) -> None:
        self._state = state
        self._kinds = kinds
        self._cluster = state.cluster
        self._planner = planner
        self._gangs = gangs
        self._reserver = reserver

    def review(self, _nodes: AbstractSet[NodeName]) -> Iterator[Proposal]:
        """Takes back what incomplete gangs hold, and lets the pods of changed gangs be planned again."""
        changed, self._state.gangs.changed = self._state.gangs.changed, set()
        for key in sorted(changed):
            yield from map(Return, self._gangs.holdings_to_return(key))
            for uid in self._state.gangs.members(key):
                self._state.pods.forget_refusal(uid)

    def resume(self) -> Iterator[Proposal]:
        """Places the rest of gangs with whole cards that were leaving the gate when the last controller ended.

        Their places are on no record. Nobody has decided since, so they are still free: these pods go before all
        others. For the first decision.
        """
        self._gangs.begin()
        waiting = (self._cluster.pods[uid] for uid in self._state.waiting)
        found = (self._gangs.gang_of(pod) for pod in waiting if pod.kind.record is Record.PIN)
        for gang in {each.key: each for each in found if each is not None}.values():
            state = self._gangs.look(gang)
            if state.begun and state.missing and state.is_complete:
                yield from self._plan_gang(gang, _Run(Turns(), {}), StepBudget(DECISION_STEPS))

    def plan(self, heads: Heads, work: StepBudget) -> Iterator[Proposal]:
        """Proposes places and refusals, and sets those of the pods that may be planned at once.

        Args:
            heads: the pods to plan.
            work: pays for it.
        """
        pods, limited = self._cluster.pods, heads.limited
        turns = Turns(list(heads.batch))
        if self._state.gangs.known:
            turns = take_turns(heads.batch, (pods[uid] for uid in limited), self._gangs)
        planned = [*heads.ordered, *(pods[uid] for uid in turns.members)]
        run = _Run(turns, limited, {self._cluster.queue_of(pod) for pod in planned})
        alone = {uid: why for uid, why in limited.items() if uid not in turns.members}
        for uid, reason in alone.items():
            if not reason.never and self._is_above_maximum(uid, reason):
                run.first_above.setdefault(reason.queue, rank(pods[uid], {}))
        holds = [hold for each in self._state.reservations.values() for hold in each.holds]
        kept = hold_slots(self._state.inventory.fleet, holds) if holds else nullcontext()
        self._state.reservations.changed.clear()
        with kept:  # parts of the batch change few of them
            yield from self._plan_parts(run, work)
        yield from (KindRefusal(kind, reason) for kind, reason in run.refused_kinds.items())
        for uid, why in heads.held_back.items():
            if isinstance(why, LastingRefusal):
                yield Refusal(pods[uid], why.reason, dependent=why.dependent, by_all=True)
        binding = self._binding(run, alone)
        for uid, full in binding.items():
            yield Refusal(pods[uid], full, until_relief=not full.never)
        if len(heads.batch) == len(heads.ordered):
            heads.left = [uid for uid in alone if uid not in binding]

    def _plan_parts(self, run: _Run, work: StepBudget) -> Iterator[Proposal]:
        """Plans a batch in parts: each pod with a reservation and each gang by itself, the pods between together."""
        for kind in self._kinds.having["prepare"]:
            kind.prepare()
        if run.turns.gangs:
            self._gangs.begin()
        backfill: list[PodInfo] = []
        pods = list(run.turns.pods)
        while pods:
            part = self._first_part(pods, run.turns)
            gang = run.turns.gangs.get(part[0].uid)
            if gang is not None:
                yield from self._plan_gang(gang, run, work)
                pods = pods[len(part) :]
            else:
                done: set[PodUid] = set()
                yield from self._plan_part(part, run, work, done, backfill)
                pods = [*(pod for pod in part if pod.uid not in done), *pods[len(part) :]]
            if work.is_spent:
                break
        yield from self._backfill(backfill, work)

    def _first_part(self, pods: Sequence[PodInfo], turns: Turns) -> list[PodInfo]:
        """Returns the first of these pods that leave the same reservations alone.

        Each part is found when its turn comes, since the parts before it end and make reservations.
        """
        found = self._state.reservations
        together = list(takewhile(lambda pod: pod.uid not in found and pod.uid not in turns.gangs, pods))
        if not together:
            return [pods[0]]
        before = {
            each: len(self._reserved_before(pod)) for each, pod in {pod.priority: pod for pod in together}.items()
        }
        return list(takewhile(lambda pod: before[pod.priority] == before[together[0].priority], together))

    def _reserved_before(self, pod: PodInfo) -> list[Reservation]:
        return reservations_before(self._state, pod) if self._state.reservations else []

    def _plan_gang(self, gang: Gang, run: _Run, work: StepBudget) -> Iterator[Proposal]:
        """Gives all missing pods of a gang their slices, or none; then the gang holds nothing behind the gate."""
        found = self._gangs.plan(gang, self._binding(run, run.limited, gang), work)
        yield from found.placed
        for uid, dependent in found.refused.items():
            yield Refusal(self._cluster.pods[uid], found.reason, dependent=dependent)
        yield from map(Return, found.returned)
        if found.returned:
            self._gangs.begin()
        if self._reserver is not None:
            self._reserver.note_gang(gang, found.reason)

    def _plan_part(
        self, pods: list[PodInfo], run: _Run, work: StepBudget, done: set[PodUid], backfill: list[PodInfo]
    ) -> Iterator[Proposal]:
        """Plans pods together, up to the first that finds no place and gets a reservation.

        A pod before that one keeps its place: nothing is reserved there. Those behind it are not decided, nor those
        beyond the constraints that are tested together.

        Args:
            pods: the pods.
            run: the pods that are planned.
            work: pays for it.
            done: gets the decided pods.
            backfill: gets refused pods that could use reserved slots, since they end in time.
        """
        own = self._state.reservations.get(pods[0].uid)
        if own is not None and own.is_inherited:
            first = self._plan_heir(pods[0], own, run, work)
            if first is not None:
                done.add(pods[0].uid)
                yield first
                return
        reserved = self._reserved_before(pods[0])
        since = {pod.uid: self._state.pods.nodes_changed_since_refusal(pod.uid) for pod in pods}
        found, dependent = self._planner.plan_beside(reserved, pods, since, work)
        for one in found:
            done.add(one.pod.uid)
            if isinstance(one, Placed):
                yield one
                continue
            if len(reservations_delayed_by(self._state, one.pod, reserved)) < len(reserved):
                backfill.append(one.pod)
            reserves = False
            for proposal in self._reserver.reserve_at_once(one.pod, one.reason) if self._reserver is not None else ():
                reserves = True
                yield proposal
            yield Refusal(one.pod, one.reason, dependent=one.pod.uid in dependent, of_kind=True)
            refused = self._state.waiting.get(one.pod.uid)
            if one.reason is not None and own is not None:
                run.heirs[_heir_kind(one.pod)] = one.reason
            if refused is not None and refused.kind is not None and one.reason is not None:
                run.refused_kinds[refused.kind] = one.reason
            if reserves:
                return

    def _plan_heir(self, pod: PodInfo, own: Reservation, run: _Run, work: StepBudget) -> Placed | Refusal | None:
        """Plans a pod in the slots that it inherits; None if it must be planned as others are.

        Each of a thousand replicas has a reservation of its own, so this looks at none of other nodes.
        """
        if not holders_of(self._state, own):
            return self._planner.plan_inherited(pod, own, work)
        found, fleet = self._state.reservations, self._state.inventory.fleet
        for node in found.changed:
            fleet.hold_on(node, [hold for each in found.on(node) for hold in each.holds])
        found.changed.clear()
        if self._planner.has_room(pod):
            return None
        reason = self._state.pods.reason_of(pod.uid) or run.heirs.get(_heir_kind(pod))
        return Refusal(pod, reason) if reason is not None else None

    def _backfill(self, pods: Sequence[PodInfo], work: StepBudget) -> Iterator[Proposal]:
        """Plans pods with deadlines on the slots of reservations that they do not delay."""
        for pod in pods[:BACKFILLED_PODS]:
            if work.is_spent:
                return
            if pod.uid not in self._state.waiting:
                continue
            before = reservations_before(self._state, pod)
            left = reservations_delayed_by(self._state, pod, before)
            found, _ = self._planner.plan_beside(left, [pod], {}, work)
            for one in found:
                if isinstance(one, Placed):
                    yield one
                    yield Backfill(pod.uid, tuple(each for each in before if each not in left))

    # Maxima of queues

    def _binding(
        self, run: _Run, held_back: Mapping[PodUid, QueueFull], gang: Gang | None = None
    ) -> Mapping[PodUid, QueueFull]:
        """Returns those of the pods for which their queue has no room indeed, now that pods before them are decided.

        A pod of which that is not certain is planned again: a queue of which no pod was planned with it leaves no more
        room.

        Args:
            run: the pods that are planned.
            held_back: pods for which there was no room if all pods before them were placed.
            gang: the pods of this gang do not wait for each other.
        """
        return {uid: reason for uid, reason in held_back.items() if self._is_binding(run, uid, reason, gang)}

    def _is_binding(self, run: _Run, uid: PodUid, reason: QueueFull, gang: Gang | None) -> bool:
        if reason.never or reason.queue not in run.queues or self._is_above_maximum(uid, reason):
            return True
        own = rank(self._cluster.pods[uid], {})
        above = run.first_above.get(reason.queue)
        if gang is not None and above is not None and above < own:
            return True
        first = self._state.pods.first_limited(reason.queue)  # an older pod that waits for the maximum goes first
        if first is None or rank(self._cluster.pods[first], {}) >= own:
            return False
        of = self._state.gangs.gang_of(first)
        return gang is None or of is None or of.key != gang.key

    def _is_above_maximum(self, uid: PodUid, reason: QueueFull) -> bool:
        pod = self._cluster.pods[uid]
        more = add_holdings([holding_of(self._state, pod), reserved_for_others(self._state, reason.queue, pod)])
        return self._state.ledger.is_above_maximum(reason.queue, more)


def _heir_kind(pod: PodInfo) -> Hashable:
    """Returns what equal replicas have in common: with no room on any card, they wait for the same reason."""
    return (pod.namespace, pod.owner, pod.profiles, pod.spread, pod.constraints)
