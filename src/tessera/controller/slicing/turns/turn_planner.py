"""Plans waiting pods in the order of their turns, some in a batch.

A batch has parts. A pod with a reservation is a part by itself, and so is a gang; the pods between are packed together,
as far as they leave the same reservations alone. A pod that ends in time may pass onto slots that are kept for others.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import takewhile

from tessera.api.names import PodUid
from tessera.api.pods.gangs import Gang
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.slicing.gangs.gang_planner import GangPlanner
from tessera.controller.slicing.gangs.gang_turns import Turns, take_turns
from tessera.controller.slicing.planning.allocation_lifecycle import AllocationLifecycle
from tessera.controller.slicing.planning.batch_placement import Placed, Unplaced, first_batch
from tessera.controller.slicing.planning.fair_order import FairOrder
from tessera.controller.slicing.planning.planner import Planner
from tessera.controller.slicing.reservations.gang_reserver import GangReserver
from tessera.controller.slicing.reservations.reserver import Reserver
from tessera.controller.slicing.state.reservation_rules import reservations_before, without_passed
from tessera.controller.slicing.state.slicer_state import SlicerState
from tessera.controller.slicing.turns.verdicts import Verdicts
from tessera.limits.planning import BATCH_PODS, DECISION_STEPS, PASSING_PODS
from tessera.placement.reserved_slots import hold_slots
from tessera.placement.step_budget import StepBudget
from tessera.reasons.reason import QueueFull

#: Pods that are planned again at once, in their order, before further ones: whenever the first of them is refused, the
#: others are put in order anew.
_PODS_AT_ONCE = 64
#: Steps for which one pod is put in order again.
_STEPS_A_POD = 8


class TurnPlanner:
    """Plans pods and gangs, and passes what it found to the verdicts.

    Args:
        state: the slicer's state.
        lifecycle: gives allocations up.
        planner: finds places for pods.
        gangs: finds places for gangs.
        order: the order of waiting pods.
        reserver: makes reservations of pods that find none.
        gang_reserver: the same for gangs.
        verdicts: records what was found.

    Attributes:
        steps: steps of planning taken so far; never decreases.
    """

    def __init__(
        self,
        state: SlicerState,
        lifecycle: AllocationLifecycle,
        planner: Planner,
        gangs: GangPlanner,
        *,
        order: FairOrder,
        reserver: Reserver,
        gang_reserver: GangReserver,
        verdicts: Verdicts,
    ) -> None:
        self.steps = 0
        self._state = state
        self._cluster = state.cluster
        self._lifecycle = lifecycle
        self._planner = planner
        self._gangs = gangs
        self._order = order
        self._reserver = reserver
        self._gang_reserver = gang_reserver
        self._verdicts = verdicts

    def review_gangs(self) -> None:
        """Takes back what incomplete gangs hold, and lets the pods of changed gangs be planned again."""
        changed, self._state.gangs.changed = self._state.gangs.changed, set()
        for key in sorted(changed):
            for allocation in self._gangs.holdings_to_return(key):
                self._lifecycle.give_up(allocation)
            for uid in self._state.gangs.members(key):
                self._state.pods.forget_refusal(uid)

    def resume_gangs(self) -> None:
        """Places the rest of gangs with whole cards that were leaving the gate when the last controller ended.

        Their places are on no record. Nobody has decided since, so they are still free: these pods go before all
        others. Runs once, at the start.
        """
        if self._state.gangs_resumed:
            return
        self._state.gangs_resumed = True
        self._gangs.begin()
        waiting = (self._cluster.pods[uid] for uid in self._state.waiting)
        found = (self._gangs.gang_of(pod) for pod in waiting if pod.devices)
        for gang in {each.key: each for each in found if each is not None}.values():
            state = self._gangs.look(gang)
            if state.begun and state.missing and state.is_complete:
                self._plan_gang(gang, {}, StepBudget(DECISION_STEPS))

    def plan(self, candidates: Collection[PodUid]) -> None:
        """Plans these waiting pods in their order, as many as one decision may.

        A pod that its queue's maximum held back, although pods before it found no place, is planned at once. In a
        decision of its own it would get room that became free meanwhile, for which pods before it wait.
        """
        work = StepBudget(DECISION_STEPS)
        left = self._plan_in_order(candidates, work) if candidates else None
        while left and not work.is_spent:
            work.spend(_STEPS_A_POD * len(left[:_PODS_AT_ONCE]))
            again = self._plan_in_order(left[:_PODS_AT_ONCE], work)
            left = None if again is None else [*again, *left[_PODS_AT_ONCE:]]
        self.steps += DECISION_STEPS - work.remaining

    def _plan_in_order(self, candidates: Iterable[PodUid], work: StepBudget) -> list[PodUid] | None:
        """Plans the first of these pods, in their order.

        Returns:
            The pods that may be planned at once, since their queue has room left; None if pods before them are left to
            the next decision.
        """
        ordered, held_back = self._order.first((self._cluster.pods[uid] for uid in candidates), BATCH_PODS)
        batch = first_batch(ordered)
        full = {uid: why for uid, why in held_back.items() if isinstance(why, QueueFull)}
        turns = take_turns(batch, (self._cluster.pods[uid] for uid in full), self._gangs)
        planned = (self._cluster.pods[uid] for uid in turns.members)
        alone = {uid: why for uid, why in full.items() if uid not in turns.members}
        self._verdicts.begin([*ordered, *planned], alone)
        holds = [hold for each in self._state.reservations.values() for hold in each.holds]
        with hold_slots(self._state.inventory.fleet, holds):  # parts of the batch change few of them
            self._plan_batch(turns, full, work)
        self._verdicts.share_reasons()
        left = self._verdicts.hold_back({uid: why for uid, why in held_back.items() if uid not in turns.members})
        return left if len(batch) == len(ordered) else None

    def _plan_batch(self, turns: Turns, held_back: Mapping[PodUid, QueueFull], work: StepBudget) -> None:
        """Plans a batch in parts: each pod with a reservation and each gang by itself, the pods between together."""
        if any(pod.devices for pod in turns.pods):
            self._state.ratings.update()
        self._gangs.begin()
        passing: list[PodInfo] = []
        pods = list(turns.pods)
        while pods:
            part = self._first_part(pods, turns)
            gang = turns.gangs.get(part[0].uid)
            left: Sequence[PodInfo] = ()
            if gang is not None:
                self._plan_gang(gang, held_back, work)
            else:
                refused, left = self._plan_part(part, work)
                passing += refused
            pods = [*left, *pods[len(part) :]]
            if work.is_spent:
                break
        self._let_pass(passing, work)

    def _first_part(self, pods: Sequence[PodInfo], turns: Turns) -> list[PodInfo]:
        """Returns the first of these pods that leave the same reservations alone.

        Each part is found when its turn comes, since the parts before it end and make reservations.
        """
        key = self._part_key(pods[0], turns)
        return list(takewhile(lambda pod: self._part_key(pod, turns) == key, pods))

    def _part_key(self, pod: PodInfo, turns: Turns) -> tuple[PodUid | None, int]:
        by_itself = pod.uid in self._state.reservations or pod.uid in turns.gangs
        return (pod.uid if by_itself else None, len(reservations_before(self._state, pod)))

    def _plan_gang(self, gang: Gang, held_back: Mapping[PodUid, QueueFull], work: StepBudget) -> None:
        """Gives all missing pods of a gang their slices, or none; then the gang holds nothing behind the gate."""
        found = self._gangs.plan(gang, self._verdicts.binding(held_back, gang), work)
        for one in found.placed:
            self._verdicts.allocate(one)
        for uid, dependent in found.refused.items():
            self._verdicts.refuse(self._cluster.pods[uid], found.reason, dependent=dependent)
        for allocation in found.returned:
            self._lifecycle.give_up(allocation)
        if found.returned:
            self._gangs.begin()
        self._gang_reserver.note(gang, found.reason)

    def _plan_part(self, pods: list[PodInfo], work: StepBudget) -> tuple[list[PodInfo], list[PodInfo]]:
        """Plans pods together, up to the first that finds no place and gets a reservation.

        Returns:
            The refused pods that could use reserved slots, since they end in time; and the pods that are not decided:
            those behind one that gets a reservation, and those beyond the constraints that are tested together.
        """
        reserved = reservations_before(self._state, pods[0])
        since = {pod.uid: self._state.pods.nodes_changed_since_refusal(pod.uid) for pod in pods}
        found, dependent = self._planner.plan_beside(reserved, pods, since, work)
        decided = self._decide_to_reservation(found, dependent)
        refused = (one.pod for one in decided if isinstance(one, Unplaced))
        passing = [pod for pod in refused if len(without_passed(self._state, pod, reserved)) < len(reserved)]
        done = {one.pod.uid for one in decided}
        return passing, [pod for pod in pods if pod.uid not in done]

    def _decide_to_reservation(
        self, found: Sequence[Placed | Unplaced], dependent: AbstractSet[PodUid]
    ) -> Sequence[Placed | Unplaced]:
        """Takes over what planning found, up to the first pod that gets a reservation, and returns this part.

        A pod before that one keeps its place: nothing is reserved there.
        """
        for number, one in enumerate(found, 1):
            if isinstance(one, Placed):
                self._verdicts.allocate(one)
                continue
            reserves = self._reserver.reserve_at_once(one.pod, one.reason)
            self._verdicts.refuse(one.pod, one.reason, dependent=one.pod.uid in dependent)
            self._verdicts.note_kind(one.pod, one.reason)
            if reserves:
                return found[:number]
        return found

    def _let_pass(self, pods: Sequence[PodInfo], work: StepBudget) -> None:
        """Plans pods with deadlines on the slots of reservations that they do not delay."""
        for pod in pods[:PASSING_PODS]:
            if work.is_spent:
                return
            if pod.uid not in self._state.waiting:
                continue
            before = reservations_before(self._state, pod)
            left = without_passed(self._state, pod, before)
            found, _ = self._planner.plan_beside(left, [pod], {}, work)
            for one in found:
                if isinstance(one, Placed):
                    self._verdicts.allocate(one)
                    for each in before:
                        if each not in left:
                            each.holders.add(pod.uid)
                            self._state.dirty_nodes.add(each.node)
