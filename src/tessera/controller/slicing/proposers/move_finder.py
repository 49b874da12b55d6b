"""Finds the moves that make room for one waiting pod under the cluster's rules, with their price. Changes nothing.

Rules:

- A pod moves only if its author allows it, a controller makes it anew, it runs, holds one slice, belongs to no gang,
  and has no higher priority than the waiting pod: the next pod of a higher one could take the room back.
- A pod on slots that are reserved for another pod stays: that pod counts on them.
- The next pod of its owner must have a place now, on a node that takes it, outside all reservations.
- The price of a move is the work that is lost and the time until the next pod works, times the memory slots. The gain
  is the time that the waiting pod waits less, times its slots. Both are slot seconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tessera.api.names import HOSTNAME_LABEL, NodeName, PodUid
from tessera.clock import parse_time_or_zero
from tessera.controller.cluster.filters import Filter, shortages
from tessera.controller.objects.pod_info import PodInfo, Record
from tessera.controller.objects.resource_amounts import Amounts, add_amounts
from tessera.controller.slicing.planner import Planner, list_objections
from tessera.controller.slicing.proposers.place_search import RELEASE_SECONDS
from tessera.controller.slicing.proposers.reserver import Reserver
from tessera.controller.slicing.state.allocation import Allocation
from tessera.controller.slicing.state.node_records import HORIZON, RestingPods
from tessera.controller.slicing.state.slicer_state import SlicerState
from tessera.controller.slicing.state.waiting_pod import PodState
from tessera.placement.cards import OwnedPlacement
from tessera.placement.demand import StepBudget
from tessera.placement.moves import MoveRules, Room, Worth, make_room, weigh
from tessera.placement.policies import MixAware
from tessera.placement.reserved_slots import Hold, hold_slots

#: Most steps: cards that are looked at, and nodes that are asked about a pod, in one search for moves. 7 to 23 ms of
#: CPU time among 40,000 cards; half of the steps look at cards, those of the emptiest nodes first.
MOVE_STEPS = 4_000
#: Most owners of pods whose last start time the controller remembers to price moves. As many as a large cluster has; of
#: more, the one that started longest ago is forgotten.
COLD_STARTS = 10_000

#: Seconds from eviction to work for an owner whose starts were not seen; an image of some gigabytes is pulled in them.
DEFAULT_START = 60.0


class ColdStarts:
    """The last start of each owner."""

    def __init__(self) -> None:
        #: By pod on a node that has not started yet, when it was first seen there.
        self._bound: dict[PodUid, float] = {}
        #: By owner, the seconds of its last start; the one that started last is the last.
        self._seconds: dict[str, float] = {}

    def observe(self, uid: PodUid, pod: PodInfo | None, now: float) -> None:
        """Takes in a pod that has changed; None if it is gone."""
        if pod is None or pod.finished or not pod.owner or not pod.movable:
            self._bound.pop(uid, None)
        elif pod.unstarted:
            self._bound.setdefault(uid, now)
        elif pod.node and (since := self._bound.pop(uid, None)) is not None and since:
            self._seconds.pop(pod.owner, None)
            self._seconds[pod.owner] = max(0.0, now - since)
            if len(self._seconds) > COLD_STARTS:
                del self._seconds[next(iter(self._seconds))]

    def seconds(self, owner: str) -> float:
        """Returns the seconds that the next pod of an owner will take."""
        return self._seconds.get(owner, DEFAULT_START)


#: Most seconds of work that a move counts as lost: a pod whose author allows moves keeps its work, or has none.
MOST_LOST = 3600.0


@dataclass(frozen=True)
class FoundRoom:
    """Moves for a waiting pod.

    Attributes:
        uid: the waiting pod.
        room: the moves, and the place that they free.
        moved: the pods that move, in the order of the moves.
        worth: slot seconds that the waiting pod gains, and that the moves cost.
    """

    uid: PodUid
    room: Room
    moved: tuple[PodUid, ...]
    worth: Worth


class MoveFinder:
    """Searches for moves.

    Args:
        state: the slicer's state.
        planner: the rules about pods on nodes.
        reserver: knows how long a pod would wait without moves.

    Attributes:
        starts: the start times of the pods that may move.
    """

    def __init__(self, state: SlicerState, planner: Planner, reserver: Reserver) -> None:
        self.starts = ColdStarts()
        self._state = state
        self._planner = planner
        self._reserver = reserver

    def find(self, pod: PodInfo, most: int, work: StepBudget | None = None) -> FoundRoom | None:
        """Returns the best moves that make room for a pod, worth their price or not; None if there are none.

        Args:
            pod: a waiting pod.
            most: the most moves.
            work: the budget of the search.
        """
        if len(pod.profiles) != 1 or pod.kind.record is not Record.NODE or pod.gang is not None or most < 1:
            return None
        others = [each for each in self._state.reservations.values() if each.uid != pod.uid]
        holds = [hold for each in others for hold in each.holds]
        work = work or StepBudget(MOVE_STEPS)
        fleet = self._state.inventory.fleet
        with (
            self._reserver.places.admission(pod) as admits,
            self._planner.filters(work.part(0.5)) as filters,
            hold_slots(fleet, holds),
        ):
            search = _Search(self, self._state, pod, holds, filters)
            rules = MoveRules(
                may_move=lambda one: search.mover(one) is not None,
                takes_moved=search.takes_moved,
                admits=admits,
                price=search.price,
            )
            nodes = self._reserver.places.nodes_for(pod)
            room = make_room(fleet, pod.profiles[0], MixAware().costs, rules, most, nodes=nodes, work=work)
        if room is None:
            return None
        pods = [(found, move.to.node) for move in room.moves if (found := search.mover(move.allocation)) is not None]
        if not self._fit_together([(pod, room.placement.node), *pods]):
            return None
        moved = tuple(each.uid for each, _ in pods)
        spared = self._spared(pod, max(each.grace for each, _ in pods))
        return FoundRoom(pod.uid, room, moved, weigh(room, gain_a_slot=spared, price=search.price))

    def price(self, pod: PodInfo, slots: int) -> float:
        """Returns the slot seconds that are lost if a pod with so many memory slots moves."""
        ran = max(0.0, self._state.now - pod.started) if pod.started else 0.0
        return slots * (min(ran, MOST_LOST) + self.starts.seconds(pod.owner))

    def _spared(self, pod: PodInfo, grace: float) -> float:
        """Seconds that a waiting pod waits less, at most those for which it will use its place.

        Args:
            pod: the waiting pod.
            grace: the longest time that a pod that moves may take to end.
        """
        spared = min(self._reserver.expected_wait(pod), HORIZON) - max(RELEASE_SECONDS, grace)
        return min(spared, pod.deadline if pod.deadline is not None else HORIZON)

    def _fit_together(self, pods: Sequence[tuple[PodInfo, str]]) -> bool:
        """True if each node has the amounts (CPU, memory, ...) for all of these pods that come to it."""
        for node in {node for _, node in pods}:
            used = dict(self._state.usage.used.get(NodeName(node), {}))
            coming: Amounts = {}
            for pod, to in pods:
                if pod.node == node:
                    add_amounts(used, pod.amounts, sign=-1)
                if to == node:
                    add_amounts(coming, pod.amounts)
            if any(shortages(coming, used, self._state.cluster.nodes[NodeName(node)])):
                return False
        return True


class _Search:
    """The rules about pods that may move, in one search; answers are remembered."""

    def __init__(
        self, finder: MoveFinder, state: SlicerState, pod: PodInfo, holds: Sequence[Hold], filters: Sequence[Filter]
    ) -> None:
        self._finder = finder
        self._state = state
        self._pod = pod
        self._filters = filters
        self._kept: dict[tuple[str, str], int] = {}
        for hold in holds:
            self._kept[hold.node, hold.gpu] = self._kept.get((hold.node, hold.gpu), 0) | hold.bits
        self._resting = RestingPods(each for found in state.moves.values() for each in found if each.counts(state.now))
        #: By node, the allocations at their first slots.
        self._held: dict[str, dict[tuple[str, int], Allocation]] = {}
        self._takes: dict[tuple[PodUid, str], bool] = {}

    def mover(self, one: OwnedPlacement) -> PodInfo | None:
        """Returns the pod of an allocation if it may move; None also if the records do not know the allocation."""
        at = one.placement
        found = self._allocations(at.node).get((at.gpu, at.start))
        if found is None or found.given_up or found.owner != one.owner:
            return None
        pod = self._state.cluster.pods.get(found.uid)
        if pod is None or not may_move(pod, self._pod, self._resting) or self._is_stuck(pod):
            return None
        kept = self._kept.get((at.node, at.gpu), 0)
        claims = self._state.inventory.fleet.card(at.node, at.gpu).claims
        return None if kept & claims[at.start] else pod

    def _is_stuck(self, pod: PodInfo) -> bool:
        return self._state.pods.state_of(pod.uid) is PodState.STUCK

    def _allocations(self, node: str) -> dict[tuple[str, int], Allocation]:
        if node not in self._held:
            found = self._state.allocations.on(NodeName(node))
            self._held[node] = {(each.gpu_uuid, each.start): one for one in found for each in one.slices}
        return self._held[node]

    def price(self, one: OwnedPlacement) -> float:
        """Slot seconds that are lost if an allocation moves."""
        pod = self.mover(one)
        return 0.0 if pod is None else self._finder.price(pod, one.placement.size)

    def takes_moved(self, one: OwnedPlacement, node: str) -> bool:
        """True if a node takes the next pod of the owner; its present node does."""
        pod = self.mover(one)
        if pod is None:
            return False
        if (pod.uid, node) not in self._takes:
            self._takes[pod.uid, node] = pod.node == node or self._would_take(pod, NodeName(node))
        return self._takes[pod.uid, node]

    def _would_take(self, pod: PodInfo, node: NodeName) -> bool:
        facts = self._state.cluster.nodes.get(node)
        if facts is None or node not in self._state.cards:
            return False
        used = self._state.usage.used.get(node, {})
        return not list_objections(
            unpinned(pod), facts, filters=self._filters, used=used, allocations=self._state.allocations
        )


def can_move(pod: PodInfo) -> bool:
    """True if a pod may move for some waiting pod, as far as the pod itself says, and its claim if it names a place."""
    if not pod.movable or not pod.owner or pod.gang is not None or len(pod.profiles) != 1 or " " in pod.profiles[0]:
        return False
    return bool(pod.node and pod.started) and not (pod.unstarted or pod.finished or pod.terminating)


def may_move(pod: PodInfo, waiting: PodInfo, resting: RestingPods) -> bool:
    """True if a pod may move for a waiting one."""
    if not can_move(pod) or pod.priority > waiting.priority:
        return False
    return not resting.contains(pod.uid, pod.owner, parse_time_or_zero(pod.created))


def unpinned(pod: PodInfo) -> PodInfo:
    """Returns a pod as its owner makes it anew: without its node, and without the pin to its host."""
    given = pod.constraints
    selector = tuple(each for each in given.selector if each[0] != HOSTNAME_LABEL)
    return replace(pod, node=NodeName(""), hostname="", constraints=replace(given, selector=selector))
