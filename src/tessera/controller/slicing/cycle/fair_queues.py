"""The turns of queues among waiting pods, and the pods that their queue's maximum holds back.

Queues come before age: of two pods of one priority the pod of the queue with the smaller share goes first; a queue
below what it is guaranteed goes before all others. A pod in the order counts for its queue at once, so queues
alternate. Within a queue the order is age.

A queue at its maximum waits as a whole: a younger and smaller pod does not start before an older one of its queue,
which would wait for ever. A pod that inherits slots does, since its queue holds no more than before. Three pods do not
hold back others: one that is larger than the maximum itself;
one that the rules of all nodes refuse, those about other pods and volumes too; and a pod of a gang that constraints on
nodes refuse, since rules about the others of its gang hold once they have places.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heapreplace

from tessera.api.names import PodUid
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.slicing.planning.lasting_refusals import LastingRefusal, LastingRefusals
from tessera.controller.slicing.state.queue_ledger import Holding
from tessera.controller.slicing.state.reservation_rules import counts_for_queue, holding_of
from tessera.controller.slicing.state.slicer_state import SlicerState
from tessera.reasons.reason import QueueFull


class FairQueues:
    """One merge of the queues' pods."""

    def __init__(self, state: SlicerState, refusals: LastingRefusals | None = None) -> None:
        self._state = state
        self._refusals = refusals
        self._ledger = state.ledger
        self._totals = state.inventory.totals
        #: Slots and GiB that count for each queue besides what it holds: reserved for it, or taken in this run.
        self._more: dict[str, Counter[str]] = {}
        self._gib: Counter[str] = Counter()
        #: Queues of which a pod waits for their maximum.
        self._closed: set[str] = set()
        #: Pods whose reservations count already.
        self._reserved: set[PodUid] = set()
        for each in state.reservations.values():
            pod = state.cluster.pods.get(each.uid)
            if pod is not None and counts_for_queue(state, each):
                self._reserved.add(each.uid)
                self._count(pod)

    def merge(self, pods: Iterable[PodInfo]) -> Iterator[tuple[PodInfo, float]]:
        """Yields the pods in order with the share of their queue; the caller counts each that is taken."""
        levels: dict[int, list[PodInfo]] = {}
        for pod in pods:
            levels.setdefault(-pod.priority, []).append(pod)
        for level in sorted(levels):
            reserved = [pod for pod in levels[level] if pod.uid in self._state.reservations]
            for pod in sorted(reserved, key=lambda each: self._state.reservations[each.uid].number):
                yield pod, self._share(self._state.cluster.queue_of(pod))
            yield from self._take_turns(pod for pod in levels[level] if pod.uid not in self._state.reservations)

    def _take_turns(self, pods: Iterable[PodInfo]) -> Iterator[tuple[PodInfo, float]]:
        queues: dict[str, list[PodInfo]] = {}
        for pod in pods:
            queues.setdefault(self._state.cluster.queue_of(pod), []).append(pod)
        for each in queues.values():
            each.sort(key=lambda pod: (pod.created, pod.key), reverse=True)
        turns = [self._turn(queue, waiting[-1]) for queue, waiting in queues.items()]
        heapify(turns)
        while turns:
            queue = turns[0][-1]
            pod = queues[queue].pop()
            yield pod, turns[0][1]
            if queues[queue]:
                heapreplace(turns, self._turn(queue, queues[queue][-1]))
            else:
                heappop(turns)

    def _turn(self, queue: str, pod: PodInfo) -> tuple[bool, float, str, str, str]:
        """Sort key of a queue: below its guarantee first, then the smallest share, then the oldest pod."""
        known = self._state.cluster.queues.get(queue)
        more = self._with(queue, holding_of(self._state, pod))
        below = known is not None and self._ledger.is_below(queue, known.guaranteed, more)
        return (not below, self._share(queue), pod.created, pod.key, queue)

    def _share(self, queue: str) -> float:
        return self._ledger.share(queue, self._totals, self._state.now, self._more.get(queue))

    def _with(self, queue: str, holding: Holding) -> Holding:
        more = self._more.get(queue)
        slots = Counter(more) if more else Counter[str]()
        slots.update(holding.slots)
        return Holding(slots, self._gib[queue] + holding.gib)

    def take(self, pod: PodInfo) -> None:
        """Counts a pod that may start as held by its queue; one with a reservation counts already."""
        if pod.uid not in self._reserved and self.may_start(pod):
            self._count(pod)

    def _count(self, pod: PodInfo) -> None:
        queue, holding = self._state.cluster.queue_of(pod), holding_of(self._state, pod)
        self._more.setdefault(queue, Counter()).update(holding.slots)
        self._gib[queue] += holding.gib

    def may_start(self, pod: PodInfo) -> bool:
        """False if no node's rules let the pod in."""
        return bool(self._state.cluster.index.open_to(pod.constraints))

    def lasting_refusal(self, pod: PodInfo) -> LastingRefusal | None:
        """Returns the refusal if all nodes refuse a pod without a gang."""
        return self._refusals.find(pod) if self._refusals is not None and pod.gang is None else None

    def hold_back(self, pod: PodInfo) -> QueueFull | LastingRefusal | None:
        """Returns the reason if the pod's queue may not hold it too, or has a maximum and all nodes refuse the pod."""
        queue = self._state.cluster.queue_of(pod)
        known = self._state.cluster.queues.get(queue)
        if known is None or known.maximum is None or not self.may_start(pod):
            return None
        refused = self.lasting_refusal(pod)
        if refused is not None:
            return refused
        own = holding_of(self._state, pod)
        more = own if pod.uid in self._reserved else self._with(queue, own)
        alone = own.gib if known.maximum.gib else own.total
        never = alone > known.maximum.amount
        if not never and not self._is_closed(queue, pod) and not self._ledger.is_above_maximum(queue, more):
            return None
        if not never and not self._inherits(pod):
            self._closed.add(queue)
        account = self._ledger.account(queue)
        held = f"{account.gib}Gi" if known.maximum.gib else f"{account.held.total()} memory slots"
        return QueueFull(pod.profiles, queue, known.maximum.text, held, never)

    def _inherits(self, pod: PodInfo) -> bool:
        own = self._state.reservations.get(pod.uid)
        return own is not None and own.is_inherited

    def _is_closed(self, queue: str, pod: PodInfo) -> bool:
        """True if a pod of the queue that goes before this one waits for the maximum."""
        if self._inherits(pod):
            return False
        if queue in self._closed:
            return True
        uid = self._state.pods.first_limited(queue)
        first = None if uid is None else self._state.cluster.pods.get(uid)
        if first is None or first.uid == pod.uid or self._are_of_one_gang(first, pod):
            return False
        return (-first.priority, first.created, first.key) < (-pod.priority, pod.created, pod.key)

    def _are_of_one_gang(self, one: PodInfo, other: PodInfo) -> bool:
        first, second = (self._state.gangs.gang_of(each.uid) for each in (one, other))
        return first is not None and second is not None and first.key == second.key
