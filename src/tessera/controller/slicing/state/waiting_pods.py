"""The pods that Tessera decides about, in the orders in which the cycle looks for them.

Rules:

- A queue is *relieved* when a pod of it may fit again: its pods hold less, fewer slots are reserved for it, its maximum
  has changed, or a pod that held back others behind it no longer waits for the maximum. Then its first pods are planned
  again. The next ones follow once one of these has a place, or once none of these waits for the maximum any more: they
  may all wait for room on cards that the next ones do not need. A pod that waits for the maximum is not planned again
  for room on a node alone.
- After planning has refused a pod, it plans the pod again only on nodes that changed since.
- A refusal answers for all pods of its *kind*: pods that planning cannot tell apart except by name and age. So of a
  kind only the first pods are planned again, and the cost of a freed slot does not grow with the number of waiting
  pods.
- Waiting pods are planned in rounds: a pod that was refused in a round is not planned again before the next round,
  however often room grows meanwhile. So no pod starves behind pods that go first and are refused each time. A round
  ends once those that were due at its start are decided; pods that come later do not prolong it, or they would get room
  before older pods.
"""

import sys
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import islice
from typing import Generic, TypeVar

from tessera.api.names import NodeName, PodUid
from tessera.controller.cluster.cluster_state import ClusterState
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.slicing.state.node_records import RESERVATION_CANDIDATES, Reservation
from tessera.controller.slicing.state.waiting_pod import (
    NOT_REFUSED,
    PROMISED,
    WAITING,
    PodState,
    QueueKey,
    WaitingPod,
    state_of_refusal,
)
from tessera.reasons.reason import QueueFull, Reason

#: Most pods of a queue at its maximum that are planned again when its pods hold less. As many as an eighth of a node's
#: slots; the next ones follow in the next decision.
RETRIED_PODS = 64

Group = TypeVar("Group", bound=Hashable)
#: A count of changes that is never reached: the pod waits for something else than room.
_NOT_DUE = sys.maxsize
#: Sort key of a pod. The least goes first.
Rank = tuple[int, int, int, str, str]


def rank(pod: PodInfo, reservations: Mapping[PodUid, Reservation]) -> Rank:
    """Sort key of pods: higher priority first, then by number of reservation, then older, then by name."""
    found = reservations.get(pod.uid)
    kept = (1, 0) if found is None else (0, found.number)
    return (-pod.priority, *kept, pod.created, pod.key)


class SortedPods(Generic[Group]):
    """Pods in groups, each group by priority, then age; the first of a group is found without a look at all."""

    def __init__(self) -> None:
        #: By group, its pods in order; no list is empty.
        self._groups: dict[Group, list[tuple[int, str, str, PodUid]]] = {}
        #: Of the same pods, the group and the entry there.
        self._entries: dict[PodUid, tuple[Group, tuple[int, str, str, PodUid]]] = {}

    def __contains__(self, uid: object) -> bool:
        return uid in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[PodUid]:
        return iter(self._entries)

    def put(self, pod: PodInfo, group: Group) -> None:
        """Adds a pod, or moves it to another group."""
        entry = (-pod.priority, pod.created, pod.key, pod.uid)
        if self._entries.get(pod.uid) == (group, entry):
            return
        self.discard(pod.uid)
        self._entries[pod.uid] = (group, entry)
        insort(self._groups.setdefault(group, []), entry)

    def discard(self, uid: PodUid) -> None:
        """Removes a pod; an unknown one is no error."""
        known = self._entries.pop(uid, None)
        if known is None:
            return
        group, entry = known
        entries = self._groups[group]
        del entries[bisect_left(entries, entry)]
        if not entries:
            del self._groups[group]

    def of(self, group: Group) -> Iterator[PodUid]:
        """Yields the pods of a group in order."""
        return (entry[-1] for entry in self._groups.get(group, ()))

    def heads(self) -> Iterator[tuple[Group, Sequence[PodUid]]]:
        """Yields each group with its first pods."""
        for group, entries in self._groups.items():
            yield group, [entry[-1] for entry in islice(entries, RESERVATION_CANDIDATES)]


class WaitingPods:
    """The records of all such pods.

    Args:
        cluster: the cluster as observed.
        relieved: the queues that were relieved; others add to it, and :meth:`relieve` empties it.

    Attributes:
        waiting: the records of the pods that wait, in the order in which they began to.
        blocked: the pods in state ``BLOCKED``.
        limited: the pods in state ``LIMITED``.
        handed_over: gated pods that had been refused slices and have them now.
    """

    def __init__(self, cluster: ClusterState, relieved: set[str]) -> None:
        self.waiting: dict[PodUid, WaitingPod] = {}
        self.blocked: SortedPods[QueueKey] = SortedPods()
        self.limited: SortedPods[QueueKey] = SortedPods()
        self.handed_over: set[PodUid] = set()
        self._cluster = cluster
        self._changes = cluster.capacity_changes
        self._relieved = relieved
        #: All records, and the same by state.
        self._records: dict[PodUid, WaitingPod] = {}
        self._by_state: dict[PodState, dict[PodUid, WaitingPod]] = {state: {} for state in PodState}
        #: Number of pods in state ``RELIEVED`` by queue.
        self._undecided: Counter[str] = Counter()
        #: The waiting pods that are of a kind, by kind, oldest first.
        self._kinds: SortedPods[Hashable] = SortedPods()
        #: By kind with pods, the number of changes of room when it was refused.
        self._refused_kinds: dict[Hashable, int] = {}
        #: The number of changes of room when the present round began.
        self._round = 0
        #: Pods that were due when it began and have waited since, without those that were refused.
        self._members: set[PodUid] = set()

    def __iter__(self) -> Iterator[WaitingPod]:
        return iter(self._records.values())

    def get(self, uid: PodUid) -> WaitingPod | None:
        """Returns the record of a pod; None for a pod that never was in another state than ``OUTSIDE``."""
        return self._records.get(uid)

    def state_of(self, uid: PodUid) -> PodState:
        """Returns the state of a pod."""
        found = self._records.get(uid)
        return PodState.OUTSIDE if found is None else found.state

    def reason_of(self, uid: PodUid) -> Reason | None:
        """Returns why planning refused a waiting pod last; None for any other pod."""
        found = self.waiting.get(uid)
        return None if found is None else found.reason

    def in_state(self, state: PodState) -> AbstractSet[PodUid]:
        """Returns the pods in a state."""
        return self._by_state[state].keys()

    @property
    def cannot_start(self) -> AbstractSet[PodUid]:
        """The pods past the gate that cannot start as they are."""
        return self.in_state(PodState.STUCK) | self.in_state(PodState.LOST)

    def record(self, uid: PodUid) -> WaitingPod:
        """Returns the record of a pod, made if there is none."""
        found = self._records.get(uid)
        if found is None:
            found = self._records[uid] = self._by_state[PodState.OUTSIDE][uid] = WaitingPod(uid)
        return found

    # Steps between states

    def move(self, uid: PodUid, state: PodState, queue: QueueKey | None = None) -> None:
        """Brings a pod to a state.

        Args:
            uid: the pod.
            state: the new state, or the present one.
            queue: the queue in which it waits, for ``LIMITED``, ``RELIEVED`` and ``BLOCKED``.
        """
        one = self._records.get(uid)
        if one is None:
            if state is PodState.OUTSIDE:
                return
            one = self.record(uid)
        if one.state is not state or one.queue != queue:
            self._step(one, state, queue)
        if queue is not None and state is not PodState.RELIEVED:
            (self.limited if state is PodState.LIMITED else self.blocked).put(self._cluster.pods[uid], queue)

    def _step(self, one: WaitingPod, state: PodState, queue: QueueKey | None) -> None:
        uid = one.uid
        self._leave_queue(one, state, queue)
        del self._by_state[one.state][uid]
        self._by_state[state][uid] = one
        one.previous, one.state = one.state, state
        if state in WAITING:
            self.waiting.setdefault(uid, one)
        elif uid in self.waiting:
            self._end_wait(one)
        if state not in PROMISED:
            self.handed_over.discard(uid)
        one.queue = queue

    def _leave_queue(self, one: WaitingPod, state: PodState, queue: QueueKey | None) -> None:
        """Takes a pod out of the queue of its present state, unless it stays there, and relieves that queue."""
        if one.queue is None or (state is one.state and queue == one.queue):
            return
        match one.state:
            case PodState.BLOCKED:
                self.blocked.discard(one.uid)
            case PodState.LIMITED:
                self.limited.discard(one.uid)
                if state is not PodState.RELIEVED:
                    self._relieved.add(one.queue[0])
            case _:
                self._undecided[one.queue[0]] -= 1
                others_wait = state is PodState.LIMITED or self._undecided[one.queue[0]]
                if state not in WAITING or not others_wait:
                    self._relieved.add(one.queue[0])

    def _end_wait(self, one: WaitingPod) -> None:
        if one.state is PodState.PLACED and one.reason is not None and self._cluster.pods[one.uid].gated:
            self.handed_over.add(one.uid)
        self.forget_refusal(one.uid)
        self._members.discard(one.uid)
        del self.waiting[one.uid]
        one.reason, one.dependent, one.refused_by_all = None, False, False
        self._cluster.placed_pods.unwatch(one.uid)

    def refuse(self, pod: PodInfo, reason: Reason, queue_of: Callable[[PodInfo], QueueKey]) -> None:
        """Notes a new reason for which planning refuses a waiting pod.

        Args:
            pod: the pod.
            reason: why it gets no slices.
            queue_of: returns the queue in which a pod waits for room.
        """
        self.waiting[pod.uid].reason = reason
        state = state_of_refusal(pod, reason)
        if isinstance(reason, QueueFull) and state is PodState.LIMITED:
            self.move(pod.uid, state, (reason.queue, ()))
        else:
            self.move(pod.uid, state, queue_of(pod) if state is PodState.BLOCKED else None)

    def drop(self, uid: PodUid) -> None:
        """Forgets a pod that is gone; an unknown one is no error."""
        self.move(uid, PodState.OUTSIDE)
        self._by_state[PodState.OUTSIDE].pop(uid, None)
        self._records.pop(uid, None)

    # Maxima of queues

    @property
    def is_relief_due(self) -> bool:
        """True if pods that wait for a maximum may have to be planned again."""
        return bool(self._relieved and self.limited)

    def relieve_all(self) -> None:
        """Lets the first pods of all queues be planned again."""
        self._relieved.update(queue for (queue, _), _ in self.limited.heads())

    def relieve(self) -> None:
        """Lets the first pods of each relieved queue be planned again."""
        found = [
            (uid, queue)
            for queue in sorted(self._relieved)
            for uid in islice(self.limited.of((queue, ())), RETRIED_PODS)
        ]
        self._relieved.clear()
        for uid, queue in found:
            self.move(uid, PodState.RELIEVED, (queue, ()))
            self._undecided[queue] += 1
            self.forget_refusal(uid)

    def first_limited(self, queue: str) -> PodUid | None:
        """Returns the first pod that waits for a queue's maximum."""
        return next(self.limited.of((queue, ())), None)

    # Refusals, and who is planned next

    def note_refusal(self, uid: PodUid) -> None:
        """Notes that a pod found no place on any node that changed up to now."""
        one = self._records[uid]
        if one.kind is not None:
            self._leave_kind(one)
        one.refused_at = self._changes.count
        self._members.discard(uid)

    def note_refusal_of_kind(self, pod: PodInfo, kind: Hashable) -> None:
        """Notes the same for a waiting pod and all refused pods of its kind."""
        one = self.waiting[pod.uid]
        if one.kind != kind:
            self.forget_refusal(pod.uid)
            one.kind = kind
        self._kinds.put(pod, kind)
        self._refused_kinds[kind] = self._changes.count

    def note_limit(self, uid: PodUid) -> None:
        """Notes that a refused pod waits for something else than room: it is planned again once that is forgotten."""
        self.forget_refusal(uid)
        self.record(uid).refused_at = _NOT_DUE

    def forget_refusal(self, uid: PodUid) -> None:
        """Forgets a refusal: the pod will be planned on all nodes, or never again."""
        one = self._records.get(uid)
        if one is None:
            return
        one.refused_at = NOT_REFUSED
        if one.kind is not None:
            self._leave_kind(one)

    def _leave_kind(self, one: WaitingPod) -> None:
        kind, one.kind = one.kind, None
        self._kinds.discard(one.uid)
        if next(self._kinds.of(kind), None) is None:
            del self._refused_kinds[kind]

    def separate(self, uid: PodUid) -> None:
        """Takes a pod out of its kind; its refusal counts further."""
        one = self._records.get(uid)
        if one is not None and one.kind is not None:
            count = self._refused_kinds[one.kind]
            self.forget_refusal(uid)
            one.refused_at = count

    def refused_at(self, uid: PodUid) -> int:
        """Returns the number of changes of room when planning refused a pod; :data:`NOT_REFUSED` if it did not."""
        one = self._records.get(uid)
        if one is None:
            return NOT_REFUSED
        return one.refused_at if one.kind is None else self._refused_kinds[one.kind]

    def nodes_changed_since_refusal(self, uid: PodUid) -> frozenset[NodeName] | None:
        """Returns the nodes that changed since a pod was refused; None if the pod must be planned on all nodes."""
        return self._changes.nodes_changed_since(self.refused_at(uid))

    def is_refused_on(self, node: NodeName, uid: PodUid) -> bool:
        """True if planning has refused a pod since the last change of a node."""
        return self.refused_at(uid) >= self._changes.last_change(node)

    def is_due(self, uid: PodUid) -> bool:
        """True if a change concerns this pod since planning refused it, whatever the round."""
        return self.refused_at(uid) < self._changes.count

    @property
    def are_due(self) -> bool:
        """True if a waiting pod must be planned again."""
        count = self._changes.count
        if any(refused < count for refused in self._refused_kinds.values()):
            return True
        return any(one.kind is None and one.refused_at < count for one in self.waiting.values())

    def pods_of_kind(self, kind: Hashable) -> Sequence[PodUid]:
        """Returns the refused pods of a kind, oldest first."""
        return list(self._kinds.of(kind))

    def next_in_round(self, most: Callable[[Hashable], int]) -> list[PodUid]:
        """Returns the pods to plan next: the rest of this round, or the first of a new one.

        Args:
            most: returns how many pods of a kind might fit at most, and one more.
        """
        found = self._due_in_round(most)
        if self._round < self._changes.count and self._members.isdisjoint(found):
            self._round = self._changes.count
            found = self._due_in_round(most)
            self._members = set(found)
        return found

    def _due_in_round(self, most: Callable[[Hashable], int]) -> list[PodUid]:
        due = [uid for uid, one in self.waiting.items() if one.kind is None and one.refused_at < self._round]
        for kind, refused in self._refused_kinds.items():
            if refused < self._round:
                due += islice(self._kinds.of(kind), most(kind))
        return due
