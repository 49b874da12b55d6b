"""Finds the next reservation: whose turn it is, and the slots that are expected to empty soonest.

It is the turn of each queue's first pod or gang that has waited long enough for room. The slots are on nodes that take
the pod once the holders have ended.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType

from tessera.api.names import NodeName, PodUid
from tessera.api.pod_annotations import Gang
from tessera.clock import parse_time_or_zero
from tessera.controller.cluster.filters import Filter, FreeAmounts, shortages
from tessera.controller.objects.pod_constraints import NO_RELATIONS
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.objects.resource_amounts import Amounts, add_amounts
from tessera.controller.slicing.gangs import GangPlanner
from tessera.controller.slicing.planner import Planner
from tessera.controller.slicing.state.allocation import Allocation, will_never_run
from tessera.controller.slicing.state.node_records import HORIZON, RESERVATION_CANDIDATES, Reservation
from tessera.controller.slicing.state.reservation_rules import holders_of, queue_key
from tessera.controller.slicing.state.slicer_state import SlicerState
from tessera.controller.slicing.state.waiting_pod import QueueKey, waits_for_room
from tessera.placement.cards import OwnedPlacement
from tessera.placement.demand import StepBudget
from tessera.placement.reserved_slots import Hold, ReservedPlace, SoonestPlace
from tessera.reasons.reason import GangNoRoom, Reason

#: Seconds until the slices of a pod that has ended are free.
RELEASE_SECONDS = 30.0
#: Least estimate for a pod without a deadline, and the time that a pod takes to start.
LEAST_SECONDS = 60.0


def ending_seconds(pod: PodInfo, now: float, least: float = RELEASE_SECONDS) -> float:
    """Returns the seconds until the slices of a pod that is being deleted are expected to be free.

    Its deadline counts where its deletion has a longer grace period: it is evicted then
    (:mod:`tessera.controller.slicing.proposers.late_pods`).
    """
    end = pod.gone_by
    if pod.deadline is not None and pod.started:
        end = min(end, pod.started + pod.deadline)
    return max(least, abs(end - now) if end else 0.0)


def residual_seconds(state: SlicerState, allocation: Allocation) -> float:
    """Returns the seconds that an allocation still lasts.

    A pod lasts as long as half of the leases of its kind and age do, at most until its deadline. One of an unknown kind
    lasts until its deadline, and without one as long again as it has run. That is Lindy's rule: those that have run for
    long are services, and run on. So no reservation waits for a service while jobs run elsewhere.

    A pod that is being deleted ends with its grace period, which its author chooses. If it is there still, a finalizer
    or a lost node holds it: it lasts as long again as it is late.
    """
    pod = state.cluster.pods.get(allocation.uid)
    if pod is None or allocation.given_up or will_never_run(pod):
        return RELEASE_SECONDS
    if pod.terminating:
        return ending_seconds(pod, state.now)
    age = max(0.0, state.now - pod.started) if pod.started else 0.0
    until_deadline = float("inf")
    if pod.deadline is not None:
        starts_in = 0.0 if pod.started else LEAST_SECONDS
        until_deadline = max(0.0, starts_in + pod.deadline - age) + RELEASE_SECONDS
    end = state.expected_ends.get(pod.uid)
    if end is None or until_deadline <= RELEASE_SECONDS:
        return max(age, LEAST_SECONDS) if pod.deadline is None else until_deadline
    return min(max(LEAST_SECONDS, end - state.now), until_deadline)


#: Steps of the rules about other pods in one search.
_FILTER_STEPS = 10_000
#: A pod that may run on at most so many nodes is searched for on these alone.
_FEW_NODES = 64


class PlaceSearch:
    """Searches places for reservations, preemption and moves.

    Args:
        state: the slicer's state.
        planner: the rules about pods on nodes.
    """

    def __init__(self, state: SlicerState, planner: Planner) -> None:
        self._state = state
        self._cluster = state.cluster
        self._planner = planner
        #: By pod, nodes that refused it although its slots were free; no set is empty.
        self._barred: dict[PodUid, set[NodeName]] = {}
        self._takes_spares = False

    def bar(self, uid: PodUid, node: NodeName) -> None:
        """Finds no more places for a pod on a node."""
        self._barred.setdefault(uid, set()).add(node)

    def forget_ended(self) -> None:
        """Forgets the barred nodes of pods that wait no more."""
        for uid in [uid for uid in self._barred if uid not in self._state.waiting]:
            del self._barred[uid]

    def find(self, pods: Sequence[PodInfo], *, takes_spares: bool = True) -> Mapping[PodUid, ReservedPlace]:
        """Returns for each pod the place that empties soonest, as far as one can say; empty if one has none.

        Args:
            pods: the pods.
            takes_spares: slices that queues keep spare may be given where there is no other place.
        """
        found = self._find(pods)
        if found or not takes_spares or not self._state.reservations.spare:
            return found
        self._takes_spares = True
        found = self._find(pods)
        self._takes_spares = False
        return found

    def _find(self, pods: Sequence[PodInfo]) -> Mapping[PodUid, ReservedPlace]:
        kinds: dict[object, list[PodInfo]] = {}
        for pod in pods:
            kind = (
                pod.profiles,
                pod.spread,
                pod.constraints,
                tuple(sorted(pod.amounts.items())),
                pod.relations,
                pod.ports,
            )
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
        """Returns places for alike pods; those with rules about other pods, or ports, get one on each node."""
        pod = pods[0]
        alone = pod.relations != NO_RELATIONS or bool(pod.ports)
        beside = {node: dict(each) for node, each in amounts.items()}

        def accept(node: str) -> bool:
            add_amounts(beside.setdefault(NodeName(node), {}), pod.amounts)
            return not alone

        with self.admission(pod, beside) as admits:
            search = SoonestPlace(
                self._state.inventory.fleet,
                pod.profiles,
                self.residual_of,
                holds=self.holds_of_others(pod),
                admits=admits,
                horizon=HORIZON,
                spread=pod.spread,
            )
            for place in taken:
                search.keep(place)
            if len(pods) > 1:
                return search.find_several(self.nodes_for(pod), len(pods), accept)
            found = search.find(self.nodes_for(pod))
            return [] if found is None else [found]

    def _slots(self, pod: PodInfo) -> int:
        tables = self._state.inventory.fleet.tables
        sizes = ([table.size_of(name) for table in tables if (name := table.name_of(each))] for each in pod.profiles)
        return sum(min(found, default=0) for found in sizes)

    def remaining(self, reservation: Reservation) -> float:
        """Returns the seconds until the last holder is expected to have ended."""
        return max((residual_seconds(self._state, each) for each in holders_of(self._state, reservation)), default=0.0)

    def awaits_amounts(self, one: Reservation, pod: PodInfo) -> bool:
        """True before the expected time, if the ends of pods on other slots of the node give it CPU and memory."""
        if self._state.now >= one.until:
            return False
        ended = frozenset(each.owner for each in self._state.allocations.on(one.node))
        with self.admission(pod) as admits:
            return admits(one.node, ended)

    def holds_of_others(self, pod: PodInfo) -> list[Hold]:
        """Returns the slots that are kept for other pods of at least this pod's priority."""
        found = self._state.reservations.values()
        own = pod.gang.key if pod.gang is not None else ""
        others = [
            each
            for each in found
            if each.uid != pod.uid and each.priority >= pod.priority and not (own and each.gang == own)
            if not (each.is_spare and self._takes_spares)
        ]
        return [hold for each in others for hold in each.holds]

    @contextmanager
    def admission(
        self, pod: PodInfo, beside: Mapping[NodeName, Amounts] = MappingProxyType({})
    ) -> Iterator[Callable[[str, frozenset[str]], bool]]:
        """Yields a function: True if a node takes the pod once these owners of slices have ended.

        Args:
            pod: the pod.
            beside: by node, amounts that others of its gang will take there.
        """
        with self._planner.filters(StepBudget(_FILTER_STEPS)) as filters:
            lasting = [each for each in filters if not each.freed_with_cards and not isinstance(each, FreeAmounts)]
            yield lambda node, ended: self._admits(pod, NodeName(node), ended, lasting, beside)

    def nodes_for(self, pod: PodInfo) -> Iterator[str]:
        """Nodes that the pod's constraints admit, emptiest first."""
        fleet, index = self._state.inventory.fleet, self._cluster.index
        able = index.open_to(pod.constraints)
        barred = self._barred.get(pod.uid, ())
        few = None
        if able.bit_count() <= _FEW_NODES:
            few = [name for name in index.names(able) if name in fleet]
        for node in fleet.emptiest_nodes(few):
            name = NodeName(node.name)
            if name not in barred and index.mask_of(name) & able and self._state.allocations.get(name, pod.uid) is None:
                yield node.name

    def _admits(
        self,
        pod: PodInfo,
        node: NodeName,
        ended: frozenset[str],
        filters: Sequence[Filter],
        beside: Mapping[NodeName, Amounts],
    ) -> bool:
        if any(each.refusal(pod, node) for each in filters):
            return False
        used = dict(self._state.usage.used.get(node, {}))
        for allocation in self._state.allocations.on(node):
            if allocation.owner in ended and not allocation.given_up:
                add_amounts(used, allocation.amounts, sign=-1)
        add_amounts(used, beside.get(node, {}))
        return not any(shortages(pod.amounts, used, self._cluster.nodes[node]))

    def residual_of(self, one: OwnedPlacement) -> float:
        """Returns the seconds until an allocation is expected to have ended; infinite for a foreign slice."""
        allocation = self._state.allocations.at(one.placement)
        return float("inf") if allocation is None else residual_seconds(self._state, allocation)

    def knows_ends(self, place: ReservedPlace | Reservation) -> bool:
        """True if the end of each holder of a place follows from its deadline, or from pods of its kind."""
        if isinstance(place, Reservation):
            holders: Iterable[Allocation | None] = holders_of(self._state, place)
        else:
            holders = (self._state.allocations.at(each.placement) for each in place.holders)
        return all(each is not None and self._knows_end(each) for each in holders)

    def _knows_end(self, allocation: Allocation) -> bool:
        pod = self._cluster.pods.get(allocation.uid)
        if pod is None or pod.terminating or allocation.given_up or pod.deadline is not None:
            return True
        return pod.uid in self._state.expected_ends


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
