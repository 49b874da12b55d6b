"""Steps 2 and 3: which waiting pods are planned now, and in what order.

The *candidates* are the pods that changed nodes concern, the first ones of queues that hold less than before, and those
that wait for other pods and volumes that have changed. The others keep their refusal.

Without any Queue object the *order* is priority, then pods with a reservation, then age. With one, queues take turns.

Queues come before age: of two pods of one priority the pod of the queue with the smaller share goes first; a queue
below what it is guaranteed goes before all others. A pod in the order counts for its queue at once, so queues
alternate. Within a queue the order is age.

A queue at its maximum waits as a whole: a younger and smaller pod does not start before an older one of its queue,
which would wait for ever. A pod that inherits slots does, since its queue holds no more than before. Three pods do not
hold back others: one that is larger than the maximum itself; one that the rules of all nodes refuse, those about other
pods and volumes too; and a pod of a gang that constraints on nodes refuse, since rules about the others of its gang
hold once they have places.
"""

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace, nsmallest

from tessera.api.names import NodeName, PodUid
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.slicing.batch_placement import count_slots, first_batch
from tessera.controller.slicing.lasting_refusals import LastingRefusal, LastingRefusals, PodKind, RefusalMemory
from tessera.controller.slicing.planner import Planner
from tessera.controller.slicing.state.queue_ledger import Holding
from tessera.controller.slicing.state.reservation_rules import counts_for_queue, holding_of
from tessera.controller.slicing.state.slicer_state import SlicerState
from tessera.controller.slicing.state.waiting_pod import PodState
from tessera.controller.slicing.state.waiting_pods import rank
from tessera.limits import BATCH_PODS
from tessera.placement.demand import StepBudget
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


#: Pods that are planned again at once, in their order, before further ones: whenever the first of them is refused, the
#: others are put in order anew.
_PODS_AT_ONCE = 64
#: Steps for which one pod is put in order again.
_STEPS_A_POD = 8
#: Share of a decision's questions to nodes for the pods that close their queues; the rest is for pods to plan.
_SHARE_OF_CLOSING_PODS = 0.5


@dataclass(frozen=True, slots=True)
class OrderEntry:
    """A waiting pod as readers of the order see it.

    Attributes:
        uid: the pod.
        key: its ``namespace/name``.
        queue: its queue.
        share: the queue's dominant share by weight, when the pod's turn comes; 0 without any Queue object.
        priority: its priority.
        created: its creation, RFC 3339.
    """

    uid: PodUid
    key: str
    queue: str
    share: float
    priority: int
    created: str


@dataclass(slots=True)
class Heads:
    """The waiting pods at the head of the order.

    Attributes:
        ordered: the first pods in order.
        batch: the first of these, as many as are planned together.
        held_back: pods among the first that are not planned: their queue has no room if all pods before them are
            placed, or it has a maximum and all nodes refuse them.
        left: pods that may be planned at once, since those before them left room in their queue; None if pods before
            them are left to the next decision. Planning sets it.
    """

    ordered: Sequence[PodInfo]
    batch: Sequence[PodInfo]
    held_back: Mapping[PodUid, QueueFull | LastingRefusal]
    left: list[PodUid] | None = None

    @property
    def limited(self) -> Mapping[PodUid, QueueFull]:
        """The pods that their queue's maximum holds back."""
        return {uid: why for uid, why in self.held_back.items() if isinstance(why, QueueFull)}


class FairOrder:
    """Orders waiting pods.

    Args:
        state: the slicer's state, which this class only reads.
        planner: knows the rules about pods on nodes; without it, pods of a queue with a maximum that these keep off
            all nodes hold back their queue.

    Attributes:
        refusals: what nodes have answered about such pods.
    """

    def __init__(self, state: SlicerState, planner: Planner | None = None) -> None:
        self.refusals = RefusalMemory()
        self._state = state
        self._planner = planner

    def heads(self, candidates: Collection[PodUid], work: StepBudget) -> Iterator[Heads]:
        """Yields the first pods, which must be planned before the next are taken.

        A pod that its queue's maximum held back, although pods before it found no place, is planned at once. In a
        decision of its own it would get room that became free meanwhile, for which pods before it wait.

        Args:
            candidates: waiting pods.
            work: pays for all but the first.
        """
        rest: Sequence[PodUid] = ()
        while candidates:
            ordered, held_back = self.first((self._state.cluster.pods[uid] for uid in candidates), BATCH_PODS)
            heads = Heads(ordered, first_batch(ordered), held_back)
            yield heads
            if heads.left is None or work.is_spent:
                return
            left = [*heads.left, *rest]
            candidates, rest = left[:_PODS_AT_ONCE], left[_PODS_AT_ONCE:]
            work.spend(_STEPS_A_POD * len(candidates))

    def first(
        self, pods: Iterable[PodInfo], most: int
    ) -> tuple[list[PodInfo], dict[PodUid, QueueFull | LastingRefusal]]:
        """Returns the first pods in order, and those among them that are not planned now.

        The latter are held back by their queue's maximum, or are of a queue with one and refused by all nodes.

        Args:
            pods: waiting pods.
            most: the number of pods to return at most, both kinds together.
        """
        if not self._state.cluster.queues:
            return nsmallest(most, pods, key=lambda pod: rank(pod, self._state.reservations)), {}
        ordered: list[PodInfo] = []
        held_back: dict[PodUid, QueueFull | LastingRefusal] = {}
        with self._lasting_refusals(self.refusals.work) as refusals:
            run = FairQueues(self._state, refusals)
            for pod, _ in run.merge(pods):
                reason = run.hold_back(pod)
                if reason is None:
                    run.take(pod)
                    ordered.append(pod)
                else:
                    held_back[pod.uid] = reason
                if len(ordered) + len(held_back) == most:
                    break
        return ordered, held_back

    def refused_by_all_nodes(self, pods: Iterable[PodInfo]) -> Sequence[PodInfo]:
        """Returns those of these pods that no node lets in; those of gangs only if by their own constraints."""
        with self._lasting_refusals(self.refusals.work.part(_SHARE_OF_CLOSING_PODS)) as refusals:
            run = FairQueues(self._state, refusals)
            found: list[PodInfo] = []
            for pod in pods:
                if run.may_start(pod):
                    refused = run.lasting_refusal(pod)
                    if refused is None:
                        continue
                    self.refusals.found[pod.uid] = refused
                found.append(pod)
            return found

    @contextmanager
    def _lasting_refusals(self, work: StepBudget) -> Iterator[LastingRefusals | None]:
        if self._planner is None or all(each.maximum is None for each in self._state.cluster.queues.values()):
            yield None
            return
        with self._planner.filters(work) as filters:
            yield LastingRefusals(self._state, filters, work, self.refusals)

    def all(self) -> Sequence[OrderEntry]:
        """Returns all waiting pods in their order; its cost grows with their number."""
        known = self._state.cluster.pods
        pods = (known[uid] for uid in self._state.waiting if uid in known)
        if not self._state.cluster.queues:
            ordered = sorted(pods, key=lambda pod: rank(pod, self._state.reservations))
            return [self._reading(pod, 0.0) for pod in ordered]
        run = FairQueues(self._state)
        found = []
        for pod, share in run.merge(pods):
            found.append(self._reading(pod, share))
            run.take(pod)
        return found

    def _reading(self, pod: PodInfo, share: float) -> OrderEntry:
        queue = self._state.cluster.queue_of(pod)
        return OrderEntry(pod.uid, pod.key, queue, share, pod.priority, pod.created)


# Candidates


def find_candidates(state: SlicerState, order: FairOrder, nodes: AbstractSet[NodeName]) -> Collection[PodUid]:
    """Returns the pods to plan.

    Args:
        state: the slicer's state, of which the memory of refusals changes.
        order: knows which pods all nodes refuse.
        nodes: the nodes that have changed since the last decision.
    """
    dependent = state.cluster.dependencies_changed
    # Only for maxima is it known who is refused for long. The memory must also end what it left, without any Queue.
    limits = state.cluster.queues or order.refusals.kinds or order.refusals.is_behind
    if limits and order.refusals.begin(nodes_changed=bool(nodes), dependencies_changed=dependent):
        _release_refused_pods(state, order)
    _replan_dependent_pods(state)
    _relieve_queues(state)
    pods = state.pods
    for uid in state.reservations:
        pods.separate(uid)
    found = dict.fromkeys(pods.next_in_round(_MostOfKind(state)))
    for uid in state.reservations:  # a pod with a reservation goes first, in every round
        if uid in pods.waiting and pods.is_due(uid):
            found[uid] = None
    for uid in found:  # time for which no node could take it does not count for its age
        if state.ages.is_idle(uid):
            state.cluster.pods[uid] = state.ages.settle(state.cluster.pods[uid], state.now)
    return found


def _release_refused_pods(state: SlicerState, order: FairOrder) -> None:
    """After a change of nodes, pods or volumes, lets no pod that all nodes refuse now close its queue any more."""
    firsts = [state.cluster.pods[uid] for _, uids in state.pods.limited.heads() for uid in uids[:1]]
    for pod in order.refused_by_all_nodes(firsts) if firsts else ():
        state.pods.move(pod.uid, PodState.QUEUED)
        state.pods.forget_refusal(pod.uid)


def _replan_dependent_pods(state: SlicerState) -> None:
    """After a change of pods or volumes, plans dependent pods again on all nodes."""
    if state.cluster.dependencies_changed:
        state.cluster.dependencies_changed = False
        for uid, one in state.waiting.items():
            if one.dependent:
                state.pods.forget_refusal(uid)


def _relieve_queues(state: SlicerState) -> None:
    """Lets the first pods of relieved queues be planned again.

    A pod that several models suit counts with the one of which it takes the least share, so a change of the numbers of
    cards may change what any pod would hold.
    """
    totals = dict(state.inventory.totals)
    if totals != state.counted_totals:
        state.counted_totals = totals
        state.pods.relieve_all()
    state.pods.relieve()


class _MostOfKind:
    """Tells how many pods of a kind the free slots might hold, and one more. For one decision."""

    def __init__(self, state: SlicerState) -> None:
        self._fleet = state.inventory.fleet
        self._free: int | None = None

    def __call__(self, kind: Hashable) -> int:
        """Returns the number for a :class:`PodKind`."""
        assert isinstance(kind, PodKind)
        if self._free is None:
            self._free = sum(node.free for node in self._fleet.fullest_nodes())
        return self._free // count_slots(self._fleet, kind.profiles) + 1
