"""Decides which waiting pods and gangs get reservations, and which slots.

Rules:

- The first pod or gang of a queue that waits for room, and has waited long enough, gets the slots that empty soonest
  (:mod:`tessera.placement.reserved_slots`). A queue has one reservation on each kind of card. A gang has its turn at
  the place of its last pod, and gets slots for each missing pod, or none.
- Reserved slots are closed to every pod of the same or lower priority without an earlier reservation. A pod with a
  deadline may use them if it ends before they are expected to be free: those of a gang, until the last is free.
- A reservation stays where it is, because a place that moves with each estimate would never empty. It moves if its node
  or cards go, if a pod of higher priority takes its slots, or if its holders outlast the reservation's patience and
  another place is expected to empty sooner; the patience doubles with each move. Those of a gang do not move: they end
  together, and the gang gets others under the same number.
- It ends when a pod waits no more, when the rules of all nodes refuse the pod, when all its slots are free and the
  node still refuses it, or when the slots are not expected to be free within a day. So no slot stays idle for a pod
  that cannot use it. Before the expected time, a refusal that the ends of pods on other slots of the node would lift
  does not count.
- Number, share of the slots and cost are bounded (:mod:`tessera.limits`).
"""

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet

import msgspec

from tessera.api.names import NodeName, PodUid
from tessera.api.pod_annotations import Gang
from tessera.clock import parse_time_or_zero
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.slicing.batch_placement import slices_at
from tessera.controller.slicing.gangs import GangPlanner
from tessera.controller.slicing.planner import Planner
from tessera.controller.slicing.proposals import EndOfReservation, NewReservation, Proposal, Proposer
from tessera.controller.slicing.proposers.place_search import PlaceSearch, ReservationTurns, Unit, rank_in_queue
from tessera.controller.slicing.state.node_records import HORIZON, PATIENCE, RESERVATIONS, RETRY, Reservation
from tessera.controller.slicing.state.reservation_rules import (
    add_holdings,
    adopt_reservations,
    holders_of,
    holding_of,
    is_agent_away,
    is_refused,
    is_sound,
    make_holds,
    meet,
    overlap,
    queue_key,
    reserved_for_others,
)
from tessera.controller.slicing.state.slicer_state import SlicerState
from tessera.controller.slicing.state.waiting_pod import QueueKey, competes_for_room, waits_for_room
from tessera.placement.reserved_slots import RESERVATION_SEARCHES, ReservedPlace
from tessera.reasons.reason import QueueFull, Reason

#: Most pods of one gang for which slots are kept together; a larger gang waits without. Each adds about 20 microseconds
#: to a decision; as many as 32 nodes of 8 cards hold.
GANG_RESERVED_PODS = 256
#: Most percent: share of all memory slots that is kept for waiting pods; the first reservation counts at any size. A
#: tenant with many large pods may not hold back the cluster.
RESERVED_PERCENT = 25


class Reserver(Proposer):
    """Proposes reservations, and their end.

    Args:
        state: the slicer's state, of which this class changes the reservations.
        planner: the rules about pods on nodes.
        gangs: knows the gangs.
        after: seconds that a pod waits before it may get a reservation; None makes none.
        reads: True to keep those that are recorded and make none, as a reader of the cluster does.
        keeps: True to take over recorded ones without ``after`` too, since moves or preemption make them.
        inherits: True to take over slots that are kept for owners' next pods.

    Attributes:
        places: finds places for reservations.
        searches: searches that the present decision may still make; the slicer sets it.
    """

    def __init__(
        self,
        state: SlicerState,
        planner: Planner,
        gangs: GangPlanner,
        after: float | None,
        *,
        reads: bool = False,
        keeps: bool = False,
        inherits: bool = True,
    ) -> None:
        self.places = PlaceSearch(state, planner)
        self.searches = int(RESERVATION_SEARCHES)
        self._state = state
        self._cluster = state.cluster
        self._turns = ReservationTurns(state, gangs, after or 0.0)
        self._after = None if reads else after
        self._reads = reads
        self._inherits = inherits
        self._keeps = keeps or reads or after is not None
        #: True once the recorded reservations have been taken over; this happens once.
        self._adopted = False
        #: Number of the last reservation.
        self._number = 0
        #: False once the present decision has searched for a gang; it may do so once.
        self._may_search_gang = True

    # What others ask

    def note_gang(self, gang: Gang, reason: Reason | None) -> None:
        """Notes the outcome of planning a gang: the reason of its refusal, None if its pods have got their places."""
        self._state.reservations_due |= self._turns.note_gang(gang, reason)

    @property
    def _now(self) -> float:
        return self._state.now

    def expected_wait(self, pod: PodInfo) -> float:
        """Returns the seconds until slots for a waiting pod are expected to be free; the horizon if none are.

        Where nothing is known of pods in the way, the pod is expected to wait at least as long again as it has waited:
        those that are in the way now follow on others that were.
        """
        place = self._state.reservations.get(pod.uid) or self._find([pod]).get(pod.uid)
        if place is None:
            return HORIZON
        seconds = self.places.remaining(place) if isinstance(place, Reservation) else place.seconds
        waited = max(0.0, self._now - parse_time_or_zero(pod.created))
        return seconds if self.places.knows_ends(place) else max(seconds, waited)

    def _find(self, pods: Sequence[PodInfo], gang: str = "") -> Mapping[PodUid, ReservedPlace]:
        """Searches places for a pod, or the pods of a gang, and counts the search; empty if one has none."""
        if gang:
            self._may_search_gang = False
        else:
            self.searches -= 1
        return self.places.find(pods)

    def _may_search(self, gang: str) -> bool:
        """True if this decision may search again; otherwise the next one does."""
        found = self._may_search_gang if gang else self.searches > 0
        self._state.reservations_due |= not found
        return found

    # Making reservations

    def review(self, nodes: AbstractSet[NodeName]) -> Iterator[Proposal]:
        """Takes over recorded reservations at the start; ends or moves those that are no longer right."""
        self._may_search_gang = True
        if not self._adopted:
            self._adopted = True
            self._number = adopt_reservations(self._state, keep=self._keeps, inherits=self._inherits)
            kept = [each for each in self._state.reservations.values() if each.kept_for is not None]
            yield from (NewReservation(None, each) for each in kept)  # they count for their queues
        found = [each for each in self._state.reservations.values() if each.kept_for is None]
        if any(each.node in nodes or each.uid not in self._state.waiting for each in found):
            yield from self._review()
            self.next_due = self._turns.next_due

    def reserve_at_once(self, pod: PodInfo, reason: Reason | None) -> Iterator[Proposal]:
        """Proposes a reservation for a pod that planning refuses now, if it is due for one and has a place.

        Args:
            pod: the pod.
            reason: why it is refused; None repeats the last reason.
        """
        reason = reason if reason is not None else self._state.pods.reason_of(pod.uid)
        if self._after is None or not self._now or self.searches <= 0:
            return
        if pod.is_held and waits_for_room(reason) and pod.uid not in self._state.reservations:
            unit = Unit([pod], queue_key(self._state, pod))
            if self._turns.is_due(rank_in_queue(pod), pod.uid) and not self._turns.gang_precedes(pod, unit.queue):
                yield from self._reserve(unit)
            self.next_due = self._turns.next_due

    def propose(self) -> Iterator[Proposal]:
        """Proposes reservations for the first pods and gangs of queues, and sets :attr:`next_due`."""
        if not self._state.reservations_due:
            return
        self._turns.next_due = None
        self._state.reservations_due = False
        yield from self._review()
        self._turns.forget_ended()
        self.places.forget_ended()
        if self._after is not None and self._now:
            yield from self._reserve_in_turn()
        self.next_due = self._turns.next_due

    def _reserve_in_turn(self) -> Iterator[Proposal]:
        self._turns.wake_at(
            min((each.made + each.patience for each in self._state.reservations.values()), default=None)
        )
        for unit in sorted(self._turns.first_units(), key=lambda each: rank_in_queue(each.last)):
            if not self._may_search(unit.gang):
                return
            yield from self._reserve(unit)

    def _reserve(self, unit: Unit) -> Iterator[Proposal]:
        """Proposes to keep slots for all pods of a unit; none if one has no place, or no more may be kept."""
        if any(each.queue == unit.queue and each.number for each in self._state.reservations.values()):
            return
        places: Mapping[PodUid, ReservedPlace] = {}
        if len(unit.pods) <= GANG_RESERVED_PODS and self.may_reserve(unit.last):
            places = self._find(unit.pods, unit.gang)
        if not any(each.holders or self._is_spare(each) for each in places.values()):
            self._turns.postpone(unit.key, RETRY)
            self._state.reservations_due |= bool(unit.gang)  # the pods behind it have their turn
            return
        number = self._turns.numbers.get(unit.key) or self._next_number()
        if unit.gang:
            self._turns.numbers[unit.key] = number
        seconds = max(each.seconds for each in places.values())
        for pod in unit.pods:
            place = msgspec.structs.replace(places[pod.uid], seconds=seconds)
            yield from self._add(pod, unit.queue, place, number, PATIENCE, gang=unit.gang)
        yield from self._keep_bounds(unit.last)

    def _is_spare(self, place: ReservedPlace) -> bool:
        """True if a queue keeps slots of a place free, which end for a reservation."""
        node, slices = place.placements[0].node, slices_at(place.placements)
        kept = [each for each in self._state.reservations.spare.values() if each.node == node]
        return any(meet(a, b) for each in kept for a in each.slices for b in slices)

    def may_reserve(self, pod: PodInfo) -> bool:
        """True if a pod without a reservation may get one.

        That is within its queue's maximum, and within the bounds or instead of a reservation of lower priority.
        """
        queue = self._cluster.queue_of(pod)
        more = add_holdings([holding_of(self._state, pod), reserved_for_others(self._state, queue, pod)])
        if self._state.ledger.is_above_maximum(queue, more):
            return False
        last = self._last_beyond_bounds(pod)
        return last is None or last.priority < pod.priority

    def _last_beyond_bounds(self, pod: PodInfo) -> Reservation | None:
        """Returns the last reservation of other pods if these reach the bounds, so that none may be added."""
        own = pod.gang.key if pod.gang is not None else ""
        found = [each for each in self._state.reservations.values() if each.number]
        reserved = [each for each in found if each.uid != pod.uid and not (own and each.gang == own)]
        slots = sum(each.slots for each in reserved)
        fleet = self._state.inventory.fleet
        total = len(fleet) * max((table.geometry.slots for table in fleet.tables), default=0) if reserved else 0
        if len({each.gang or each.uid for each in reserved}) < RESERVATIONS and slots * 100 <= total * RESERVED_PERCENT:
            return None
        return max(reserved, key=lambda each: each.rank)

    def _keep_bounds(self, pod: PodInfo) -> Iterator[Proposal]:
        """After a pod or its gang got a reservation, ends the last of lower priority if others reach the bounds."""
        last = self._last_beyond_bounds(pod)
        if last is not None and last.priority < pod.priority:
            yield EndOfReservation(last)

    def take(self, pod: PodInfo, place: ReservedPlace, patience: float) -> Iterator[Proposal]:
        """Proposes to reserve a place for a pod, instead of the one that it may have."""
        own = self._state.reservations.get(pod.uid)
        if own is not None:
            yield EndOfReservation(own)
        number = (own.number if own is not None else 0) or self._next_number()
        yield from self._add(pod, queue_key(self._state, pod), place, number, patience)
        if own is None:
            yield from self._keep_bounds(pod)

    def _next_number(self) -> int:
        self._number += 1
        return self._number

    def _add(
        self, pod: PodInfo, queue: QueueKey, place: ReservedPlace, number: int, patience: float, *, gang: str = ""
    ) -> Iterator[Proposal]:
        """Proposes the reservation of a place; others that it overlaps end."""
        node = NodeName(place.placements[0].node)
        slices = slices_at(place.placements)
        holds = make_holds(self._state, node, slices, pod.key)
        assert holds is not None, f"the place found for {pod.key} is not on node {node}"
        made = Reservation(
            uid=pod.uid,
            key=pod.key,
            queue=queue,
            priority=pod.priority,
            number=number,
            node=node,
            slices=slices,
            holds=holds,
            made=self._now,
            until=self._now + place.seconds,
            patience=max(patience, 2 * place.seconds),
            gang=gang,
        )
        made.holders = {each.uid for each in holders_of(self._state, made)}
        for other in [each for each in self._state.reservations.values() if overlap(each, made)]:
            yield EndOfReservation(other)
        yield NewReservation(pod, made)

    # Checking reservations

    def _review(self) -> Iterator[Proposal]:
        """Proposes to end or move reservations of waiting pods that are no longer right."""
        units: dict[str, list[Reservation]] = {}
        found = () if self._reads else self._state.reservations.values()
        for each in sorted([one for one in found if one.kept_for is None], key=lambda one: one.rank):
            units.setdefault(each.gang or each.uid, []).append(each)
        for held in units.values():
            if self._state.reservations.get(held[0].uid) is held[0]:
                yield from self._review_unit(held)

    def _review_unit(self, held: Sequence[Reservation]) -> Iterator[Proposal]:
        pods = self._pods_of(held)
        if not pods:
            yield EndOfReservation(held[0])
        elif not all(is_sound(self._state, each, pods[each.uid]) or self._is_away(each) for each in held):
            yield from self._replace(held, pods, RETRY)
        elif self._is_refused(held, pods):
            if not held[0].gang:
                self.places.bar(held[0].uid, held[0].node)
            yield from self._replace(held, pods, PATIENCE)
        elif self._now > held[0].made + held[0].patience:
            yield from self._reconsider(held, pods)

    def _is_away(self, one: Reservation) -> bool:
        """True for inherited slots that wait for the node's agent."""
        return one.is_inherited and is_agent_away(self._state, one)

    def _pods_of(self, held: Sequence[Reservation]) -> Mapping[PodUid, PodInfo]:
        """Returns the pods of a unit; empty if one waits no more, for something else than room, or as one of a gang."""
        pods = {each.uid: self._cluster.pods[each.uid] for each in held if each.uid in self._state.waiting}
        reasons = [self._state.pods.reason_of(uid) for uid in pods]
        if held[0].is_inherited and not is_refused(self._state, held[0]):
            reasons = [each for each in reasons if not isinstance(each, QueueFull)]  # the pod before it counts still
        if len(pods) < len(held) or any(isinstance(each, QueueFull) for each in reasons):
            return {}
        gang = self._state.gangs.gang_of(held[0].uid)
        missing = {each.uid for each in self._turns.missing(gang)} if gang is not None else set()
        if not held[0].gang:
            alone = missing.isdisjoint(pods)  # a leader's others may have come since
            is_away = self._is_away(held[0])
            return pods if alone and (is_away or all(map(competes_for_room, reasons))) else {}
        return pods if missing == pods.keys() else {}

    def _is_refused(self, held: Sequence[Reservation], pods: Mapping[PodUid, PodInfo]) -> bool:
        """True if all slots are free and planning has refused the unit since, for a reason that does not end soon."""
        if not all(is_refused(self._state, each) for each in held) or self._is_away(held[0]):
            return False
        return not any(self.places.awaits_amounts(each, pods[each.uid]) for each in held)

    def _reconsider(self, held: Sequence[Reservation], pods: Mapping[PodUid, PodInfo]) -> Iterator[Proposal]:
        one = held[0]
        left = max(map(self.places.remaining, held))
        if not self._may_search(one.gang):
            return
        places = self._find(list(pods.values()), one.gang)
        nodes = {each.placements[0].node for each in places.values()}
        if places and max(each.seconds for each in places.values()) < left and (one.gang or one.node not in nodes):
            yield from self._move(one, pods, places)
        elif left > HORIZON:
            yield EndOfReservation(one)
            self._turns.postpone(one.gang or one.uid, PATIENCE)
        else:
            for each in held:
                each.patience *= 2

    def _replace(self, held: Sequence[Reservation], pods: Mapping[PodUid, PodInfo], pause: float) -> Iterator[Proposal]:
        """Moves a reservation that is no longer right, or ends it; without searches left, in the next decision.

        Args:
            held: the reservations of a unit.
            pods: its pods.
            pause: seconds until a gang that was refused is searched for again.
        """
        one = held[0]
        if one.gang:
            yield EndOfReservation(one)
            if pause > RETRY:
                self._turns.postpone(one.gang, pause)
            return
        if not self._may_search(""):
            return
        places = self._find(list(pods.values()))
        if any(each.holders for each in places.values()):
            yield from self._move(one, pods, places)
        else:
            yield EndOfReservation(one)
            self._turns.postpone(one.uid, RETRY)

    def _move(
        self, one: Reservation, pods: Mapping[PodUid, PodInfo], places: Mapping[PodUid, ReservedPlace]
    ) -> Iterator[Proposal]:
        """Moves a pod's reservation. A gang gets others in its next turn."""
        yield EndOfReservation(one)
        if not one.gang:
            number = one.number or self._next_number()
            yield from self._add(pods[one.uid], one.queue, places[one.uid], number, one.patience * 2)
