"""Makes room for waiting pods by moves: recommends them, or evicts the pods that move.

Rules:

- Moves are looked for only for a pod that has waited for a minute, since it finds no place although enough slots are
  free: the first such pod of each queue, or the one that has the queue's reservation.
- The queue that is due for the longest time goes first, and one that has got moves is due again after a minute.
- Moves that cost more than they gain are not made (:mod:`tessera.controller.slicing.proposers.move_finder`).
- The freed place is reserved for the waiting pod before the first eviction.
- A move is recorded before its eviction (:mod:`tessera.controller.slicing.state.node_records`). The moves of the last
  hour never exceed the budget, and a pod that was made anew since its owner's last move does not move in that hour.
- One pod is evicted after the other, through the eviction API. An eviction that is refused, or that has no effect in a
  minute, ends the plan; if nothing has moved yet, the reservation ends too. A server that is too busy to answer
  has refused nothing: it is asked again in that minute.

The moves of the last hour that an earlier process recorded are taken over, and older ones are forgotten.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tessera.api.names import PodUid
from tessera.clock import parse_time_or_zero
from tessera.controller.base import MoveMode, MoveSettings
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.slicing.proposals import EndOfReservation, Notice, Proposal, Proposer, evict
from tessera.controller.slicing.proposers.move_finder import FoundRoom, MoveFinder
from tessera.controller.slicing.proposers.place_search import RELEASE_SECONDS
from tessera.controller.slicing.proposers.reserver import Reserver
from tessera.controller.slicing.state.messages import moved_text, not_moved_text, room_text
from tessera.controller.slicing.state.node_records import (
    MOVE_COUNTS,
    MOVES_ANNOTATION,
    PATIENCE,
    RecordedMove,
    Reservation,
    read_moves,
)
from tessera.controller.slicing.state.reservation_rules import holders_of
from tessera.controller.slicing.state.slicer_state import SlicerState
from tessera.placement.moves import MOST_MOVES
from tessera.placement.reserved_slots import ReservedPlace
from tessera.reasons.reason import Fragmented

#: Most pods: waiting pods for which one decision looks for moves. A search takes as long as a decision; further pods
#: are searched for in the next decisions, 2.5 s apart.
MOVE_SEARCHES = 1

#: Seconds that a pod waits before moves are looked for; most rooms come by themselves.
MOVES_AFTER = 60.0
#: Seconds until moves for a pod are looked for again.
SEARCHED_AGAIN = 60.0
#: Least seconds between two looks at the waiting pods.
LOOK_SECONDS = 2.5
#: Seconds after which an eviction that had no effect ends the plan.
EVICTION_SECONDS = 60.0


@dataclass(slots=True)
class MovePlan:
    """Moves that are under way.

    Attributes:
        uid: the waiting pod.
        reserved: its reservation; the plan ends with it.
        left: the pods to evict, in order; the first is the present one.
        since: when the present one was recorded.
        asked: the present one, once its eviction was asked for.
        again: the server has not answered that request, or not now: the eviction is asked for again.
        done: pods that have been evicted.
    """

    uid: PodUid
    reserved: Reservation
    left: list[PodUid] = field(default_factory=list)
    since: float = 0.0
    asked: PodInfo | None = None
    again: bool = False
    done: int = 0


class Mover(Proposer):
    """Looks for moves, and carries them out.

    Args:
        state: the slicer's state, of which this class changes the moves.
        reserver: makes the reservation of the freed place.
        finder: finds moves.
        settings: what is done with moves, and how often.

    Attributes:
        rooms: by waiting pod, the moves that were found and not carried out, worth their price.
        evicted: pods whose eviction was asked for; never decreases.
        refused: moves that were given up, since the eviction failed or had no effect; never decreases.
    """

    follows = "movable"

    def __init__(self, state: SlicerState, reserver: Reserver, finder: MoveFinder, settings: MoveSettings) -> None:
        self.rooms: dict[PodUid, FoundRoom] = {}
        self.evicted = 0
        self.refused = 0
        self._state = state
        self._reserver = reserver
        self._finder = finder
        self._settings = settings
        #: By waiting pod, the moves under way.
        self._plans: dict[PodUid, MovePlan] = {}
        #: By waiting pod, the time of the next search.
        self._next_search: dict[PodUid, float] = {}
        #: By queue, the time of its last plan, of the last minute.
        self._served: dict[str, float] = {}
        #: By waiting pod, the pods of the last event about moves.
        self._told: dict[PodUid, tuple[PodUid, ...]] = {}
        #: Time before which the waiting pods are not looked at again.
        self._next_look = 0.0
        #: Time of the next look, if nothing else happens; None while nobody waits for one.
        self._look_due: float | None = None

    def observe(self, uid: PodUid) -> None:
        """Takes in a pod that has changed."""
        self._finder.starts.observe(uid, self._state.cluster.pods.get(uid), self._state.now)

    def note_refusal(self, uid: PodUid, reason: str) -> Iterator[Proposal]:
        """Takes in that the server refused an eviction, by a PodDisruptionBudget or another policy, and its reason."""
        for plan in list(self._plans.values()):
            if plan.asked is not None and plan.asked.uid == uid:
                text = not_moved_text(plan.asked, plan.reserved, reason, MOVE_COUNTS)
                yield Notice(plan.asked, "SliceMoveRefused", text)
                yield from self._give_up(plan)

    def note_no_answer(self, uid: PodUid) -> None:
        """Takes in that the server did not answer an eviction, or that it asked for another try."""
        for plan in self._plans.values():
            if plan.asked is not None and plan.asked.uid == uid:
                plan.again = True

    def propose(self) -> Iterator[Proposal]:
        """Carries plans on, and looks for moves for the first waiting pods."""
        now = self._state.now
        if not now:
            return
        self._forget(now)
        for plan in list(self._plans.values()):
            yield from self._carry_on(plan, now)
        if now >= self._next_look:
            self._next_look = now + LOOK_SECONDS
            yield from self._look(now)
        elif self._state.pods.blocked:
            self._look_due = self._next_look
        times = [each.since + EVICTION_SECONDS for each in self._plans.values()]
        self.next_due = min(times if self._look_due is None else [*times, self._look_due], default=None)

    # Looking for moves

    def _look(self, now: float) -> Iterator[Proposal]:
        """Searches for the first pods that are due, and sets the time of the next look."""
        dues: list[float] = []
        searches = int(MOVE_SEARCHES)
        for due, pod in self._first_pods():
            if due > now or (not searches and not self._is_served(pod)):
                dues.append(max(due, self._next_look))
                continue
            if not self._is_served(pod):
                searches -= 1
                yield from self._search(pod, now)
            self._next_search[pod.uid] = now + SEARCHED_AGAIN
            dues.append(now + SEARCHED_AGAIN)
        self._look_due = min(dues, default=None)

    def _first_pods(self) -> list[tuple[float, PodInfo]]:
        """Of each queue the pod for which moves may be looked for, with the time at which it is due, in that order."""
        found = [pod for _, uids in self._state.pods.blocked.heads() if (pod := self._first_of(uids)) is not None]
        dues = [(self._due(pod), pod) for pod in found]
        return sorted(dues, key=lambda each: (each[0], -each[1].priority, each[1].created, each[1].key))

    def _due(self, pod: PodInfo) -> float:
        """The time of the next search for a pod. A queue that has just got moves waits for its next turn."""
        of_queue = self._served.get(self._state.cluster.queue_of(pod), 0.0) + SEARCHED_AGAIN
        return max(self._next_search.get(pod.uid, 0.0), parse_time_or_zero(pod.created) + MOVES_AFTER, of_queue)

    def _first_of(self, uids: Sequence[PodUid]) -> PodInfo | None:
        reserved = [uid for uid in uids if uid in self._state.reservations]
        for uid in reserved or uids:
            pod = self._state.cluster.pods.get(uid)
            if pod is not None and len(pod.profiles) == 1 and isinstance(self._state.pods.reason_of(uid), Fragmented):
                return pod
        return None

    def _is_served(self, pod: PodInfo) -> bool:
        """True if moves for the pod are under way, or its reserved slots are about to be free."""
        found = self._state.reservations.get(pod.uid)
        if pod.uid in self._plans or found is None:
            return pod.uid in self._plans
        pods = (self._state.cluster.pods.get(each.uid) for each in holders_of(self._state, found))
        return all(each is None or each.terminating for each in pods)

    def _search(self, pod: PodInfo, now: float) -> Iterator[Proposal]:
        evicts = self._settings.mode is MoveMode.EVICT
        most = min(MOST_MOVES, self._budget()) if evicts else MOST_MOVES
        found = self._finder.find(pod, most) if most > 0 else None
        if found is None or not found.worth.is_positive:
            self.rooms.pop(pod.uid, None)
        elif not evicts:
            yield from self._recommend(pod, found)
        elif pod.uid in self._state.reservations or self._reserver.may_reserve(pod):
            yield from self._begin(pod, found, now)

    def _recommend(self, pod: PodInfo, found: FoundRoom) -> Iterator[Proposal]:
        self.rooms[pod.uid] = found
        if self._told.get(pod.uid) != found.moved:
            self._told[pod.uid] = found.moved
            yield Notice(pod, "SliceRoomByMoves", room_text(pod, found.room))

    # Carrying moves out

    def _begin(self, pod: PodInfo, found: FoundRoom, now: float) -> Iterator[Proposal]:
        holders = tuple(move.allocation for move in found.room.moves)
        place = ReservedPlace((found.room.placement,), holders, RELEASE_SECONDS)
        yield from self._reserver.take(pod, place, PATIENCE)
        plan = MovePlan(pod.uid, self._state.reservations[pod.uid], list(found.moved))
        self._plans[pod.uid] = plan
        self._served[self._state.cluster.queue_of(pod)] = now
        self._record(plan, now)

    def _record(self, plan: MovePlan, now: float) -> None:
        """Records the next move of a plan; its eviction waits until the node's object shows it."""
        pod = self._state.cluster.pods.get(plan.left[0])
        if pod is None or pod.terminating or not pod.node:
            self._advance(plan, now)
            return
        plan.since, plan.asked, plan.again = now, None, False
        entry = RecordedMove(uid=pod.uid, owner=pod.owner, date=now)
        self._state.moves[pod.node] = (*self._state.moves.get(pod.node, ()), entry)
        self._state.dirty_nodes.add(pod.node)

    def _carry_on(self, plan: MovePlan, now: float) -> Iterator[Proposal]:
        waits = plan.uid in self._state.waiting
        if not waits or self._state.reservations.get(plan.uid) is not plan.reserved:
            del self._plans[plan.uid]
            return
        pod = self._state.cluster.pods.get(plan.left[0])
        if pod is None or pod.terminating or pod.finished:
            if plan.asked is not None:
                plan.done += 1
                yield Notice(plan.asked, "SliceMoved", moved_text(plan.asked, plan.reserved))
            self._advance(plan, now)
        elif now >= plan.since + EVICTION_SECONDS:
            yield from self._give_up(plan)
        elif (plan.asked is None or plan.again) and self._is_recorded(pod):
            yield from self._evict(plan, pod)

    def _is_recorded(self, pod: PodInfo) -> bool:
        item = self._state.cluster.objects.get(pod.node)
        return item is not None and any(each.uid == pod.uid for each in read_moves(item))

    def _evict(self, plan: MovePlan, pod: PodInfo) -> Iterator[Proposal]:
        if not pod.movable or not pod.owner:  # its author took the annotation back
            yield from self._give_up(plan)
            return
        if ("pod", pod.uid) in self._state.busy:
            return
        self.evicted += plan.asked is None
        plan.asked, plan.again = pod, False
        yield from evict(pod)

    def _advance(self, plan: MovePlan, now: float) -> None:
        plan.left.pop(0)
        if plan.left:
            self._record(plan, now)
        else:
            self._plans.pop(plan.uid, None)

    def _give_up(self, plan: MovePlan) -> Iterator[Proposal]:
        """Ends a plan. What has moved stays moved, and then the place stays reserved."""
        self.refused += 1
        self._plans.pop(plan.uid, None)
        if not plan.done and self._state.reservations.get(plan.uid) is plan.reserved:
            yield EndOfReservation(plan.reserved)

    # The last hour

    def _budget(self) -> int:
        """Evictions that may still be planned in this hour."""
        recorded = sum(each.counts(self._state.now) for found in self._state.moves.values() for each in found)
        planned = sum(len(plan.left) - 1 for plan in self._plans.values())
        return self._settings.per_hour - recorded - planned

    def _forget(self, now: float) -> None:
        self._served = {queue: date for queue, date in self._served.items() if date > now - SEARCHED_AGAIN}
        known = {*self._next_search, *self._told, *self.rooms}
        for uid in [uid for uid in known if not isinstance(self._state.pods.reason_of(uid), Fragmented)]:
            self._next_search.pop(uid, None)
            self._told.pop(uid, None)
            self.rooms.pop(uid, None)


#: Most entries of failed updates that a new controller takes over from one node.
FAILED_UPDATES = 64


class RecordedMoves(Proposer):
    """The moves of the last hour. They count where no further moves are made too.

    Args:
        state: the slicer's state, of which this class changes the moves.
        settings: say how many moves an hour has at most.
        others: proposers that may know owners of failed updates.
    """

    def __init__(self, state: SlicerState, settings: MoveSettings, others: Sequence[Proposer]) -> None:
        self.next_due = 0.0
        self._state = state
        self._settings = settings
        self._others = others
        #: True once the recorded moves have been taken over; this happens once, as soon as the time is known.
        self._adopted = False

    def propose(self) -> Iterator[Proposal]:
        """Brings the moves of the last hour up to date, and proposes nothing."""
        if self._state.now:
            self._adopt()
            self._forget()
            ends = (each.date + MOVE_COUNTS for found in self._state.moves.values() for each in found)
            self.next_due = min((each for each in ends if each > self._state.now), default=None)
        yield from ()

    def _adopt(self) -> None:
        if self._adopted:
            return
        self._adopted = True
        for node, item in self._state.cluster.objects.items():
            if MOVES_ANNOTATION in item.metadata.annotations:
                found = sorted(read_moves(item), key=lambda each: not each.revision)
                self._state.moves[node] = tuple(found[: max(FAILED_UPDATES, self._settings.per_hour)])
                self._state.dirty_nodes.add(node)

    def _forget(self) -> None:
        for node, found in list(self._state.moves.items()):
            left = tuple(each for each in found if each.is_recent(self._state.now) or self._has_failed(each))
            if len(left) < len(found):
                self._state.dirty_nodes.add(node)
                if left:
                    self._state.moves[node] = left
                else:
                    del self._state.moves[node]

    def _has_failed(self, one: RecordedMove) -> bool:
        """True for an update that failed, while its ReplicaSet has pods."""
        return bool(one.revision) and any(each.has_pods_of(one.owner) for each in self._others)
