"""Whose turn it is to get a reservation: of each queue the first pod or gang that has waited long enough for room."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tessera.api.pod_annotations import Gang
from tessera.clock import parse_time_or_zero
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.slicing.gangs import GangPlanner
from tessera.controller.slicing.state.reservation import RESERVATION_CANDIDATES
from tessera.controller.slicing.state.reservation_rules import queue_key
from tessera.controller.slicing.state.slicer_state import SlicerState
from tessera.controller.slicing.state.waiting_pod import QueueKey, waits_for_room
from tessera.reasons.reason import GangNoRoom, Reason

#: Sort key of a pod or a gang in its queue. The least goes first.
Rank = tuple[int, str, str]


def rank_in_queue(pod: PodInfo) -> Rank:
    """Sort key of a pod in its queue."""
    return (-pod.priority, pod.created, pod.key)


@dataclass(frozen=True, slots=True)
class Unit:
    """A pod, or the missing pods of a gang, that waits for room.

    Attributes:
        pods: the pods in order; its place is that of the last.
        queue: the queue in which the last one waits.
        gang: the key of the gang; empty for a pod by itself.
    """

    pods: Sequence[PodInfo]
    queue: QueueKey
    gang: str = ""

    @property
    def key(self) -> str:
        """Names it."""
        return self.gang or self.pods[0].uid

    @property
    def last(self) -> PodInfo:
        """The pod that has its place in the order."""
        return max(self.pods, key=rank_in_queue)


class ReservationTurns:
    """The pods and gangs that may get reservations.

    Args:
        state: the slicer's state, which this class only reads.
        gangs: knows the gangs.
        after: seconds that a pod waits before its turn.

    Attributes:
        next_due: time at which one may get a reservation, or one may move, if nothing else happens; None if never.
        numbers: by key of a waiting gang, the number of its reservations.
    """

    def __init__(self, state: SlicerState, gangs: GangPlanner, after: float) -> None:
        self.next_due: float | None = None
        self.numbers: dict[str, int] = {}
        self._state = state
        self._gangs = gangs
        self._after = after
        #: By UID of a pod, or key of a gang, without a possible place, the time of its next search.
        self._retry: dict[str, float] = {}
        #: By key, the gangs that planning refused for lack of room, each at the place of its last pod.
        self._waiting: dict[str, tuple[Gang, Rank, QueueKey]] = {}

    def wake_at(self, at: float | None) -> None:
        """Notes a time at which something may be due."""
        if at is not None:
            self.next_due = at if self.next_due is None else min(self.next_due, at)

    def postpone(self, key: str, seconds: float) -> None:
        """Leaves a pod or gang without a possible place alone for these seconds."""
        self._retry[key] = self._state.now + seconds
        self.wake_at(self._retry[key])

    def note_gang(self, gang: Gang, reason: Reason | None) -> bool:
        """Notes the outcome of planning a gang: the reason of its refusal, None if its pods have got their places.

        Returns:
            True if it waits for room.
        """
        pods = self.missing(gang)
        if not pods or not isinstance(reason, GangNoRoom) or not waits_for_room(reason.reason):
            self._waiting.pop(gang.key, None)
            return False
        last = max(pods, key=rank_in_queue)
        self._waiting[gang.key] = (gang, rank_in_queue(last), queue_key(self._state, last))
        return True

    def missing(self, gang: Gang) -> Sequence[PodInfo]:
        """Returns the pods that a gang needs to start, in order; empty if it is not complete or needs none."""
        found = self._gangs.look(gang)
        return found.ready[: found.missing] if found.is_complete else ()

    def first_units(self) -> Iterator[Unit]:
        """Yields of each queue without a reservation the first pod or gang that may get one now."""
        taken = {each.queue for each in self._state.reservations.values() if not each.is_inherited}
        gangs = self._first_gangs()
        blocked = dict(self._state.pods.blocked.heads())
        for queue in dict.fromkeys((*blocked, *gangs)):
            if queue in taken:
                continue
            pods = (
                self._state.cluster.pods[uid] for uid in blocked.get(queue, ()) if uid not in self._state.reservations
            )
            pod = next((each for each in pods if self.is_due(rank_in_queue(each), each.uid)), None)
            gang = gangs.get(queue)
            if gang is not None and (pod is None or rank_in_queue(gang.last) < rank_in_queue(pod)):
                yield gang
            elif pod is not None:
                yield Unit([pod], queue)

    def _first_gangs(self) -> Mapping[QueueKey, Unit]:
        """Returns by queue the first gang that is due, among the first ones that wait there."""
        reserved = {each.gang for each in self._state.reservations.values()}
        counts: dict[QueueKey, int] = {}
        found: dict[QueueKey, Unit] = {}
        for gang, rank, queue in sorted(self._waiting.values(), key=lambda each: each[1]):
            counts[queue] = counts.get(queue, 0) + 1
            if queue in found or gang.key in reserved or counts[queue] > RESERVATION_CANDIDATES:
                continue
            pods = self.missing(gang)
            if not pods:
                del self._waiting[gang.key]
            elif self.is_due(rank, gang.key):
                found[queue] = Unit(pods, queue, gang.key)
        return found

    def gang_precedes(self, pod: PodInfo, queue: QueueKey) -> bool:
        """True if a gang of the queue that may get a reservation now goes before a pod."""
        waiting = self._waiting.values()
        return any(
            of == queue and rank < rank_in_queue(pod) and self.is_due(rank, gang.key) for gang, rank, of in waiting
        )

    def is_due(self, rank: Rank, key: str) -> bool:
        """True if a pod or gang at a place of the order has waited long enough, and was not postponed."""
        at = max(parse_time_or_zero(rank[1]) + self._after, self._retry.get(key, 0.0))
        if at <= self._state.now:
            return True
        self.wake_at(at)
        return False

    def forget_ended(self) -> None:
        """Forgets pods and gangs that wait no more."""
        for memo in (self._retry, self.numbers):
            for key in [key for key in memo if key not in self._waiting and key not in self._state.waiting]:
                del memo[key]
