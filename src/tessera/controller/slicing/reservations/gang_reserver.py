"""Decides which gangs get reservations: slots for all of their missing pods together, or none.

Rules:

- A gang that waits for room, and whose last pod has waited long enough, gets the slots that empty soonest, for each
  missing pod some. If one of them has no place, nothing is kept for the others.
- It takes turns with the pods of its queue, at the place of its last pod in the order. A queue has one reservation on
  each kind of card, be it of a pod or of a gang.
- All slots are kept until the last of them is free; a pod with a deadline may use them if it ends before.
- The reservations of a gang end together: when a pod of it goes or finds other cards, when one of the places is no
  longer right, or when all slots are free and planning still refuses the gang. The gang then gets others, under the
  same number, as far as there are some.
- A gang with rules about other pods, or host ports, gets at most one place on each node.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import msgspec

from tessera.api.names import NodeName, PodUid
from tessera.api.pods.gangs import Gang
from tessera.clock import parse_time_or_zero
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.objects.pod_relations import NO_RELATIONS
from tessera.controller.objects.resource_amounts import Amounts, add_amounts
from tessera.controller.slicing.gangs.gang_planner import GangPlanner
from tessera.controller.slicing.planning.proposals import EndOfReservation, Proposal
from tessera.controller.slicing.reservations.reserver import Reserver
from tessera.controller.slicing.state.reservation import HORIZON, PATIENCE, RETRY, Reservation
from tessera.controller.slicing.state.reservation_rules import holders_of, queue_key
from tessera.controller.slicing.state.slicer_state import SlicerState
from tessera.controller.slicing.state.waiting_pod import QueueKey, waits_for_room
from tessera.limits.planning import RESERVATION_CANDIDATES
from tessera.placement.reserved_slots import ReservedPlace, SoonestPlace
from tessera.reasons.reason import GangNoRoom, QueueFull, Reason

#: Most pods of one gang for which slots are kept together; a larger gang waits without. Each adds about 20 microseconds
#: to a decision; as many as 32 nodes of 8 cards hold.
GANG_RESERVED_PODS = 256

#: Sort key of a pod or a gang in its queue. The least goes first.
_Rank = tuple[int, str, str]


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A gang that planning refused for lack of room, at the place of its last pod."""

    gang: Gang
    rank: _Rank
    queue: QueueKey


class GangReserver:
    """Makes, checks and ends the reservations of gangs.

    Args:
        state: the slicer's state, of which this class changes the reservations.
        gangs: knows the gangs.
        reserver: makes the reservations of single pods, and has the rules for both.
        after: seconds that the last pod waits before its gang may get a reservation; None makes none.
    """

    def __init__(self, state: SlicerState, gangs: GangPlanner, reserver: Reserver, after: float | None) -> None:
        self._state = state
        self._gangs = gangs
        self._reserver = reserver
        self._after = after
        reserver.gangs = self
        #: By key, the gangs that wait for room.
        self._waiting: dict[str, _Waiting] = {}
        #: By key of a gang without a possible place, the time of its next search.
        self._retry: dict[str, float] = {}
        #: By key of a waiting gang, the number of its reservations.
        self._numbers: dict[str, int] = {}
        #: True once the present decision has searched for a gang; it may do so once.
        self._searched = False

    def note(self, gang: Gang, reason: Reason | None) -> None:
        """Notes the outcome of planning a gang: the reason of its refusal, None if its pods have got their places."""
        pods = self._missing(gang)
        if not pods or not isinstance(reason, GangNoRoom) or not waits_for_room(reason.reason):
            self._waiting.pop(gang.key, None)
            return
        last = max(pods, key=_rank)
        self._waiting[gang.key] = _Waiting(gang, _rank(last), queue_key(self._state, last))
        self._state.reservations_due = True

    def review(self, nodes: AbstractSet[NodeName]) -> Iterator[Proposal]:
        """Proposes which reservations end, now that these nodes have changed."""
        self._searched = False
        found = [each for each in self._state.reservations.values() if each.gang]
        if any(each.node in nodes or each.uid not in self._state.waiting for each in found):
            yield from self._review()

    def propose(self) -> Iterator[Proposal]:
        """Checks the reservations, and proposes them for the first gang that is due."""
        if self._after is None or not self._state.now:
            return
        yield from self._review()
        for memo in (self._retry, self._numbers):
            for key in [key for key in memo if key not in self._waiting]:
                del memo[key]
        reserved = [each for each in self._state.reservations.values() if each.gang]
        if not self._waiting and not reserved:
            return
        self._reserver.wake_at(min((each.made + each.patience for each in reserved), default=None))
        taken = {each.queue for each in self._state.reservations.values()}
        blocked = dict(self._state.pods.blocked.heads())
        for each in self._candidates():
            if not self._missing(each.gang):
                del self._waiting[each.gang.key]
                continue
            if each.queue in taken or not self._is_due(each):
                continue
            single = self._reserver.first_due(blocked.get(each.queue, ()))
            if single is not None and _rank(single) < each.rank:
                continue
            if self._searched:
                self._state.reservations_due = True
                return
            yield from self._reserve(each)

    def _candidates(self) -> Iterable[_Waiting]:
        """Returns the waiting gangs without a reservation, in order; the first ones of each queue."""
        reserved = {each.gang for each in self._state.reservations.values()}
        counts: dict[QueueKey, int] = {}
        found = []
        for each in sorted(self._waiting.values(), key=lambda one: one.rank):
            counts[each.queue] = counts.get(each.queue, 0) + 1
            if each.gang.key not in reserved and counts[each.queue] <= RESERVATION_CANDIDATES:
                found.append(each)
        return found

    def precede(self, pod: PodInfo, queue: QueueKey) -> bool:
        """True if a gang of the queue that may get a reservation now goes before a pod."""
        if self._after is None or not self._waiting:
            return False
        rank = _rank(pod)
        return any(each.queue == queue and each.rank < rank and self._is_due(each) for each in self._waiting.values())

    def _is_due(self, one: _Waiting) -> bool:
        at = max(parse_time_or_zero(one.rank[1]) + (self._after or 0.0), self._retry.get(one.gang.key, 0.0))
        if at <= self._state.now:
            return True
        self._reserver.wake_at(at)
        return False

    def _missing(self, gang: Gang) -> Sequence[PodInfo]:
        """Returns the pods that a gang needs to start, in order; empty if it is not complete or needs none."""
        found = self._gangs.look(gang)
        return found.ready[: found.missing] if found.is_complete else ()

    # Making reservations

    def _reserve(self, one: _Waiting) -> Iterator[Proposal]:
        """Proposes to keep slots for all missing pods of a gang; none if one has no place, or no more may be kept."""
        key, pods = one.gang.key, self._missing(one.gang)
        last = max(pods, key=_rank, default=None)
        places: Mapping[PodUid, ReservedPlace] = {}
        if last is not None and len(pods) <= GANG_RESERVED_PODS and self._reserver.may_reserve(last):
            places = self._find(pods)
        if last is None or not any(each.holders for each in places.values()):
            self._retry[key] = self._state.now + RETRY
            self._reserver.wake_at(self._retry[key])
            return
        number = self._numbers.setdefault(key, self._reserver.next_number())
        seconds = max(each.seconds for each in places.values())
        for pod in pods:
            place = msgspec.structs.replace(places[pod.uid], seconds=seconds)
            yield from self._reserver.add(pod, one.queue, place, number, PATIENCE, gang=key)
        yield from self._reserver.keep_bounds(last)

    def _find(self, pods: Sequence[PodInfo]) -> Mapping[PodUid, ReservedPlace]:
        """Returns a place for each pod, beside those of the others; empty if one has none."""
        self._searched = True
        kinds: dict[object, list[PodInfo]] = {}
        for pod in pods:
            kind = (pod.profiles, pod.constraints, tuple(sorted(pod.amounts.items())), pod.relations, pod.ports)
            kinds.setdefault(kind, []).append(pod)
        found: dict[PodUid, ReservedPlace] = {}
        amounts: dict[NodeName, Amounts] = {}
        for alike in sorted(kinds.values(), key=lambda each: -self._slots(each[0])):
            places = self._find_alike(alike, found.values(), amounts)
            if not places:
                return {}
            for pod, place in zip(alike, places, strict=True):
                found[pod.uid] = place
                add_amounts(amounts.setdefault(NodeName(place.placements[0].node), {}), pod.amounts)
        return found

    def _find_alike(
        self, pods: Sequence[PodInfo], taken: Iterable[ReservedPlace], amounts: Mapping[NodeName, Amounts]
    ) -> Sequence[ReservedPlace]:
        pod = pods[0]
        alone = pod.relations != NO_RELATIONS or bool(pod.ports)
        beside = {node: dict(each) for node, each in amounts.items()}

        def accept(node: str) -> bool:
            add_amounts(beside.setdefault(NodeName(node), {}), pod.amounts)
            return not alone

        with self._reserver.places.admission(pod, beside) as admits:
            search = SoonestPlace(
                self._state.inventory.fleet,
                pod.profiles,
                self._reserver.places.residual_of,
                holds=self._reserver.places.holds_of_others(pod),
                admits=admits,
                horizon=HORIZON,
            )
            for place in taken:
                search.keep(place)
            return search.find_several(self._reserver.places.nodes_for(pod), len(pods), accept)

    def _slots(self, pod: PodInfo) -> int:
        tables = self._state.inventory.fleet.tables
        sizes = ([table.size_of(name) for table in tables if (name := table.name_of(each))] for each in pod.profiles)
        return sum(min(found, default=0) for found in sizes)

    # Checking reservations

    def _review(self) -> Iterator[Proposal]:
        """Proposes to end reservations that are no longer right, and those whose slots empty too late."""
        gangs: dict[str, list[Reservation]] = {}
        for each in self._state.reservations.values():
            if each.gang:
                gangs.setdefault(each.gang, []).append(each)
        for key, held in gangs.items():
            if self._state.reservations.get(held[0].uid) is held[0]:
                yield from self._review_gang(key, held)

    def _review_gang(self, key: str, held: Sequence[Reservation]) -> Iterator[Proposal]:
        gang = self._state.gangs.gang_of(held[0].uid)
        pods = {pod.uid: pod for pod in self._missing(gang)} if gang is not None else {}
        complete = pods.keys() == {each.uid for each in held} and not any(map(self._is_held_back, pods))
        if not complete or not all(self._reserver.is_sound(each, pods[each.uid]) for each in held):
            yield EndOfReservation(held[0])
        elif self._is_refused(held, pods):
            yield EndOfReservation(held[0])
            self._retry[key] = self._state.now + PATIENCE
        elif self._state.now > held[0].made + held[0].patience:
            yield from self._reconsider(key, held, list(pods.values()))

    def _is_held_back(self, uid: PodUid) -> bool:
        return uid not in self._state.waiting or isinstance(self._state.pods.reason_of(uid), QueueFull)

    def _is_refused(self, held: Sequence[Reservation], pods: Mapping[PodUid, PodInfo]) -> bool:
        """True if all slots are free and planning has refused the gang since, for a reason that does not end soon."""
        if any(holders_of(self._state, each) for each in held):
            return False
        if not all(self._state.pods.is_refused_on(each.node, each.uid) for each in held):
            return False
        return not any(self._reserver.awaits_amounts(each, pods[each.uid]) for each in held)

    def _reconsider(self, key: str, held: Sequence[Reservation], pods: Sequence[PodInfo]) -> Iterator[Proposal]:
        if self._searched:
            self._state.reservations_due = True
            return
        left = max(map(self._reserver.places.remaining, held))
        places = self._find(pods)
        if places and max(each.seconds for each in places.values()) < left:
            yield EndOfReservation(held[0])
        elif left > HORIZON:
            yield EndOfReservation(held[0])
            self._retry[key] = self._state.now + PATIENCE
        else:
            for each in held:
                each.patience *= 2


def _rank(pod: PodInfo) -> _Rank:
    return (-pod.priority, pod.created, pod.key)
