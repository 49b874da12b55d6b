"""Decides which waiting pods get a reservation, and which slots.

Rules:

- The first pod of a queue that waits for room, and has waited long enough, gets the slots that empty soonest
  (:mod:`tessera.placement.reserved_slots`). A queue has one reservation on each kind of card.
- Reserved slots are closed to every pod of the same or lower priority without an earlier reservation. A pod with a
  deadline may use them if it ends before they are expected to be free.
- A reservation stays where it is, because a place that moves with each estimate would never empty. It moves if its node
  or cards go, if a pod of higher priority takes its slots, or if its holders outlast the reservation's patience and
  another place is expected to empty sooner; the patience doubles with each move.
- It ends when the pod waits no more, when the rules of all nodes refuse the pod, when all its slots are free and the
  node still refuses it, or when the slots are not expected to be free within a day. So no slot stays idle for a pod
  that cannot use it. Before the expected time, a refusal that the ends of pods on other slots of the node would lift
  does not count.
- The pods of a gang have reservations together (:mod:`tessera.controller.slicing.reservations.gang_reserver`).
- Number, share of the slots and cost are bounded (:mod:`tessera.limits.planning`).
"""

from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING

from tessera.api.names import NodeName, PodUid
from tessera.api.pods.gangs import Gang
from tessera.clock import parse_time_or_zero
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.slicing.planning.batch_placement import slices_at
from tessera.controller.slicing.planning.planner import Planner
from tessera.controller.slicing.planning.proposals import EndOfReservation, NewReservation, Proposal, Proposer
from tessera.controller.slicing.reservations.place_search import PlaceSearch
from tessera.controller.slicing.reservations.reservation_record import adopt_reservations
from tessera.controller.slicing.state.reservation import HORIZON, PATIENCE, RETRY, Reservation
from tessera.controller.slicing.state.reservation_rules import (
    add_holdings,
    holders_of,
    holding_of,
    make_holds,
    overlap,
    queue_key,
    reserved_for_others,
)
from tessera.controller.slicing.state.slicer_state import SlicerState
from tessera.controller.slicing.state.waiting_pod import QueueKey, competes_for_room, waits_for_room
from tessera.limits.planning import RESERVATION_SEARCHES, RESERVATIONS
from tessera.placement.reserved_slots import ReservedPlace
from tessera.reasons.reason import QueueFull, Reason

if TYPE_CHECKING:
    from tessera.controller.slicing.reservations.gang_reserver import GangReserver

#: Most percent: share of all memory slots that is kept for waiting pods; the first reservation counts at any size. A
#: tenant with many large pods may not hold back the cluster.
RESERVED_PERCENT = 25


class Reserver(Proposer):
    """Proposes reservations, and their end.

    Args:
        state: the slicer's state, of which this class changes the reservations.
        planner: the rules about pods on nodes.
        after: seconds that a pod waits before it may get a reservation; None makes none.
        reads: True to keep those that are recorded and make none, as a reader of the cluster does.
        keeps: True to take over recorded ones without ``after`` too, since moves or preemption make them.

    Attributes:
        gangs: the gangs that wait for reservations; None if none get any.
        places: finds places for reservations.
        searches: searches that the present decision may still make; the slicer sets it.
    """

    def __init__(
        self, state: SlicerState, planner: Planner, after: float | None, *, reads: bool = False, keeps: bool = False
    ) -> None:
        self.places = PlaceSearch(state, planner)
        self.gangs: GangReserver | None = None
        self.searches = int(RESERVATION_SEARCHES)
        self._state = state
        self._cluster = state.cluster
        self._after = after
        self._reads = reads
        self._keeps = keeps or reads or after is not None
        #: True once the recorded reservations have been taken over; this happens once.
        self._adopted = False
        #: True if there were gangs when reservations were proposed last; once none is left, theirs are ended.
        self._saw_gangs = False
        #: Number of the last reservation.
        self._number = 0
        #: By pod without a possible place, the time of its next search.
        self._retry: dict[PodUid, float] = {}

    def wake_at(self, at: float | None) -> None:
        """Notes a time at which a pod or a gang may get a reservation, or one may move."""
        if at is not None:
            self.next_due = at if self.next_due is None else min(self.next_due, at)

    def note_gang(self, gang: Gang, reason: Reason | None) -> None:
        """Notes the outcome of planning a gang."""
        if self.gangs is not None:
            self.gangs.note(gang, reason)

    # What others ask

    @property
    def _now(self) -> float:
        return self._state.now

    def expected_wait(self, pod: PodInfo) -> float:
        """Returns the seconds until slots for a waiting pod are expected to be free; the horizon if none are.

        Where nothing is known of pods in the way, the pod is expected to wait at least as long again as it has waited:
        those that are in the way now follow on others that were.
        """
        reservation = self._state.reservations.get(pod.uid)
        place = reservation or self._find(pod)
        if place is None:
            return HORIZON
        seconds = self.places.remaining(place) if isinstance(place, Reservation) else place.seconds
        waited = max(0.0, self._now - parse_time_or_zero(pod.created))
        return seconds if self.places.knows_ends(place) else max(seconds, waited)

    def _find(self, pod: PodInfo) -> ReservedPlace | None:
        """Searches a place, and counts the search."""
        self.searches -= 1
        return self.places.find(pod)

    # Making reservations

    def review(self, nodes: AbstractSet[NodeName]) -> Iterator[Proposal]:
        """Takes over recorded reservations at the start; ends or moves those that are no longer right."""
        if not self._adopted:
            self._adopted = True
            self._number = adopt_reservations(self._state, keep=self._keeps)
        found = self._state.reservations.values()
        if any(each.node in nodes or each.uid not in self._state.waiting for each in found):
            yield from self._review()
        if self.gangs is not None and (self._state.gangs.known or self._saw_gangs):
            yield from self.gangs.review(nodes)

    def reserve_at_once(self, pod: PodInfo, reason: Reason | None) -> Iterator[Proposal]:
        """Proposes a reservation for a pod that planning refuses now, if it is due for one and has a place.

        Args:
            pod: the pod.
            reason: why it is refused; None repeats the last reason.
        """
        reason = reason if reason is not None else self._state.pods.reason_of(pod.uid)
        if self._after is None or not self._now or self.searches <= 0:
            return
        if pod.gated and waits_for_room(reason) and self._is_due(pod):
            yield from self._reserve(pod, queue_key(self._state, pod))

    def propose(self) -> Iterator[Proposal]:
        """Proposes reservations for the first pods and gangs of queues, and sets :attr:`next_due`."""
        if not self._state.reservations_due:
            return
        self.next_due = None
        saw, self._saw_gangs = self._saw_gangs, bool(self._state.gangs.known)
        if self.gangs is not None and (saw or self._saw_gangs):
            yield from self.gangs.propose()
        self._state.reservations_due = False
        yield from self._review()
        self._forget_ended()
        if self._after is not None and self._now:
            yield from self._reserve_for_first()

    def _reserve_for_first(self) -> Iterator[Proposal]:
        self.wake_at(min((each.made + each.patience for each in self._state.reservations.values()), default=None))
        firsts: list[tuple[tuple[int, str, str], PodInfo, QueueKey]] = []
        taken = {each.queue for each in self._state.reservations.values()}
        for queue, uids in self._state.pods.blocked.heads():
            pod = None if queue in taken else self.first_due(uids)
            if pod is not None:
                firsts.append(((-pod.priority, pod.created, pod.key), pod, queue))
        for _, pod, queue in sorted(firsts, key=lambda each: each[0]):
            if self.searches <= 0:
                self._state.reservations_due = True
                return
            yield from self._reserve(pod, queue)

    def first_due(self, uids: Iterable[PodUid]) -> PodInfo | None:
        """Returns the first of these waiting pods that may get a reservation now; None if there is none."""
        for uid in uids:
            pod = self._cluster.pods.get(uid)
            if pod is None or uid not in self._state.waiting:
                continue
            if self._is_due(pod):
                return pod
        return None

    def _is_due(self, pod: PodInfo) -> bool:
        if pod.uid in self._state.reservations:
            return False
        at = max(parse_time_or_zero(pod.created) + (self._after or 0.0), self._retry.get(pod.uid, 0.0))
        if at <= self._now:
            return True
        self.wake_at(at)
        return False

    def _reserve(self, pod: PodInfo, queue: QueueKey) -> Iterator[Proposal]:
        """Proposes to reserve a place for a pod; nothing if there is none, or no more may be reserved."""
        taken = any(each.queue == queue for each in self._state.reservations.values())
        if taken or (self.gangs is not None and self.gangs.precede(pod, queue)):
            return
        place = self._find(pod) if self.may_reserve(pod) else None
        if place is None or not place.holders:
            self._retry[pod.uid] = self._now + RETRY
            self._is_due(pod)
            return
        yield from self.add(pod, queue, place, self.next_number(), PATIENCE)
        yield from self.keep_bounds(pod)

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
        found = self._state.reservations.values()
        reserved = [each for each in found if each.uid != pod.uid and not (own and each.gang == own)]
        slots = sum(each.slots for each in reserved)
        fleet = self._state.inventory.fleet
        total = len(fleet) * max((table.geometry.slots for table in fleet.tables), default=0) if reserved else 0
        if len({each.gang or each.uid for each in reserved}) < RESERVATIONS and slots * 100 <= total * RESERVED_PERCENT:
            return None
        return max(reserved, key=lambda each: each.rank)

    def keep_bounds(self, pod: PodInfo) -> Iterator[Proposal]:
        """After a pod or its gang got a reservation, ends the last of lower priority if others reach the bounds."""
        last = self._last_beyond_bounds(pod)
        if last is not None and last.priority < pod.priority:
            yield EndOfReservation(last)

    def take(self, pod: PodInfo, place: ReservedPlace, patience: float) -> Iterator[Proposal]:
        """Proposes to reserve a place for a pod, instead of the one that it may have."""
        own = self._state.reservations.get(pod.uid)
        if own is not None:
            yield EndOfReservation(own)
        number = own.number if own is not None else self.next_number()
        yield from self.add(pod, queue_key(self._state, pod), place, number, patience)
        if own is None:
            yield from self.keep_bounds(pod)

    def next_number(self) -> int:
        """Returns the number of a new reservation."""
        self._number += 1
        return self._number

    def add(
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
        yield NewReservation(pod, made, place.seconds)

    # Checking reservations

    def _review(self) -> Iterator[Proposal]:
        """Proposes to end or move reservations that are no longer right."""
        if self._reads:
            return
        for each in sorted(self._state.reservations.values(), key=lambda one: one.rank):
            if each.gang or self._state.reservations.get(each.uid) is not each:
                continue
            pod = self._cluster.pods.get(each.uid)
            reason = self._state.pods.reason_of(each.uid)
            held_back = isinstance(reason, QueueFull) or not competes_for_room(reason)
            if pod is None or each.uid not in self._state.waiting or held_back:
                yield EndOfReservation(each)
            elif not self.is_sound(each, pod):
                yield from self._replace(each, pod)
            elif self._is_refused_by_node(each) and not self.awaits_amounts(each, pod):
                self.places.bar(each.uid, each.node)
                yield from self._replace(each, pod)
            elif self._now > each.made + each.patience:
                yield from self._reconsider(each, pod)

    def is_sound(self, one: Reservation, pod: PodInfo) -> bool:
        """True if the node may still take the pod, and nobody has taken slots of the reservation against its rules."""
        able = self._cluster.index.open_to(pod.constraints) & self._cluster.index.mask_of(one.node)
        if not able or make_holds(self._state, one.node, one.slices, one.key) != one.holds:
            return False
        holders = holders_of(self._state, one)
        owners = {each.owner for each in holders}
        return all(each.uid in one.holders for each in holders) and not self._foreign_on(one, owners)

    def _foreign_on(self, one: Reservation, owners: AbstractSet[str]) -> bool:
        """True if a slice of none of these owners has come to lie on the slots: one that no record explains."""
        cards = [(hold, self._state.inventory.fleet.card(hold.node, hold.gpu)) for hold in one.holds]
        return any(
            held.owner not in owners and hold.bits & card.table.mask_of(held.placement.on_card)
            for hold, card in cards
            for held in card.allocations.values()
        )

    def _is_refused_by_node(self, one: Reservation) -> bool:
        """True if all slots are free and planning has refused the pod since."""
        return not holders_of(self._state, one) and self._state.pods.is_refused_on(one.node, one.uid)

    def awaits_amounts(self, one: Reservation, pod: PodInfo) -> bool:
        """True before the expected time, if the ends of pods on other slots of the node give it CPU and memory."""
        if self._now >= one.until:
            return False
        ended = frozenset(each.owner for each in self._state.allocations.on(one.node))
        with self.places.admission(pod) as admits:
            return admits(one.node, ended)

    def _reconsider(self, one: Reservation, pod: PodInfo) -> Iterator[Proposal]:
        left = self.places.remaining(one)
        if self.searches <= 0:
            self._state.reservations_due = True
            return
        place = self._find(pod)
        if place is not None and place.placements[0].node != one.node and place.seconds < left:
            yield from self._move(one, pod, place)
        elif left > HORIZON:
            yield EndOfReservation(one)
            self._retry[one.uid] = self._now + PATIENCE
        else:
            one.patience *= 2

    def _replace(self, one: Reservation, pod: PodInfo) -> Iterator[Proposal]:
        """Moves a reservation that is no longer right, or ends it; without searches left, in the next decision."""
        if self.searches <= 0:
            self._state.reservations_due = True
            return
        place = self._find(pod)
        if place is None or not place.holders:
            yield EndOfReservation(one)
            self._retry[one.uid] = self._now + RETRY
        else:
            yield from self._move(one, pod, place)

    def _move(self, one: Reservation, pod: PodInfo, place: ReservedPlace) -> Iterator[Proposal]:
        yield EndOfReservation(one)
        yield from self.add(pod, one.queue, place, one.number, one.patience * 2)

    def _forget_ended(self) -> None:
        for uid in [uid for uid in self._retry if uid not in self._state.waiting]:
            del self._retry[uid]
        self.places.forget_ended()
