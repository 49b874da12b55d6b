"""Decides about gangs: all pods of a gang get their slices in one decision, or none of them does.

Rules:

- A gang of N pods counts its pods that have *started* (past our gate, or ended well), those that *hold* slices behind
  the gate, and those that are *ready* to be placed. It is complete if these are N.
- An incomplete gang gets nothing and holds nothing: its pods wait with the numbers as the reason.
- For a complete gang, as many ready pods as are missing are planned together. If one of them finds no place, none gets
  one, and what the gang holds behind the gate goes back.
- No pod leaves the gate before every pod that is needed has its slices on record (:attr:`GangState.may_start`). So a
  controller that dies in between leaves a gang whose pods all hold slices, or one that has not started.
- Pods beyond N, and those of a gang whose N pods have started, are planned one by one.

A gang that has started is not taken apart: a pod that comes later counts those that run.

A gang has its turn when the last of the pods that it needs has it, so a gang is as old, and of as high a priority, as
its youngest and lowest pod: nobody gets ahead by one early pod, or by one of high priority.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tessera.api.names import PodUid
from tessera.api.pod_annotations import Gang
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.slicing.batch_placement import Placed, Unplaced
from tessera.controller.slicing.planner import Planner
from tessera.controller.slicing.state.allocation import Allocation
from tessera.controller.slicing.state.reservation_rules import (
    add_holdings,
    holding_of,
    reservations_before,
    reserved_for_others,
)
from tessera.controller.slicing.state.slicer_state import SlicerState
from tessera.limits import DECISION_STEPS
from tessera.mig.geometry import Geometry, Profile, free_slots
from tessera.placement.demand import StepBudget
from tessera.placement.fleet import Fleet
from tessera.reasons.reason import Fragmented, Full, GangIncomplete, GangNoRoom, GangTooLarge, QueueFull, Reason

#: Most steps: checks for each pod of a gang that is planned, if they are more than those of one step of the planning.
#: Twice the cards of the 64 nodes that are asked one by one; about half a second for the largest gang.
GANG_POD_STEPS = 1_000

#: The nodes of pods that may run on at most so many are looked at one by one.
_FEW_NODES = 64


@dataclass(frozen=True, slots=True)
class GangState:
    """What is known of a gang.

    Attributes:
        gang: its name, and the largest size that one of its pods states.
        started: the number of its pods that have started, ended well, or do not wait for slices.
        begun: True if one of its pods with slices is past the gate.
        holding: allocations of its pods behind the gate.
        ready: its pods that can be placed, the oldest first.
        held: the number of its other pods.
    """

    gang: Gang
    started: int
    begun: bool
    holding: tuple[Allocation, ...]
    ready: tuple[PodInfo, ...]
    held: int

    @property
    def missing(self) -> int:
        """The number of pods that still need a place before the gang may start."""
        return max(0, self.gang.size - self.started - len(self.holding))

    @property
    def is_complete(self) -> bool:
        """True if there are enough pods; False if the size is unknown."""
        return bool(self.gang.size) and self.missing <= len(self.ready)

    @property
    def exist(self) -> int:
        """The number of its pods."""
        return self.started + len(self.holding) + len(self.ready) + self.held

    @property
    def may_start(self) -> bool:
        """True if pods with slices on record may leave the gate: the gang has begun, or has all its slices on record.

        Slices that this process has asked for, and of which no answer has come, are not on record.
        """
        placed = bool(self.gang.size) and not self.missing
        return self.begun or (placed and all(each.may_start for each in self.holding))


@dataclass(frozen=True, slots=True)
class GangPlan:
    """The outcome for a gang.

    Attributes:
        placed: a place for each missing pod; empty if there is not one for all.
        refused: the pods that wait, and whether other pods or volumes keep each off a node.
        reason: the reason of all refused pods.
        returned: slices that the gang holds behind the gate and must give back.
    """

    placed: tuple[Placed, ...] = ()
    refused: Mapping[PodUid, bool] = field(default_factory=dict)
    reason: Reason | None = None
    returned: tuple[Allocation, ...] = ()


class GangPlanner:
    """Plans whole gangs.

    Args:
        state: the slicer's state, which this class only reads.
        planner: finds places.
    """

    def __init__(self, state: SlicerState, planner: Planner) -> None:
        self._state = state
        self._planner = planner
        #: Answers of :meth:`_free_places` in this batch, by the nodes' bits and the profile.
        self._rooms: dict[tuple[int, str], int] = {}

    def begin(self) -> None:
        """Begins a batch, or goes on with it after slots may have become free.

        The room for a profile is counted once for alike gangs. Until the next call slots are only taken, so the count
        stays an upper bound.
        """
        self._rooms.clear()

    def look(self, gang: Gang) -> GangState:
        """Returns what is known of a gang."""
        state = self._state
        started = held = 0
        begun = False
        known = (state.gangs.gang_of(uid) for uid in state.gangs.members(gang.key))
        gang = replace(gang, size=max((each.size for each in known if each is not None), default=gang.size))
        holding: list[Allocation] = []
        ready: list[PodInfo] = []
        for uid in state.gangs.members(gang.key):
            pod = state.cluster.pods.get(uid)
            if pod is None or pod.finished or pod.terminating:
                started += state.gangs.has_succeeded(uid)
                continue
            allocation = state.allocations.current_of(uid)
            if not pod.is_held or ("pod", uid) in state.busy:
                started += 1
                begun |= allocation is not None
            elif allocation is not None:
                holding.append(allocation)
            elif uid in state.waiting and pod.ready_to_place:
                ready.append(pod)
            else:
                held += 1
        ready.sort(key=lambda pod: (-pod.priority, pod.created, pod.key))
        return GangState(gang, started, begun, tuple(holding), tuple(ready), held)

    def gang_of(self, pod: PodInfo) -> Gang | None:
        """Returns the gang of a pod that is not bound yet; None for any other pod."""
        return self._state.gangs.gang_of(pod.uid) if pod.is_held else None

    def holdings_to_return(self, key: str) -> Sequence[Allocation]:
        """Returns the slices behind the gate of a gang that cannot start with them: pods of it have gone."""
        gangs = self._state.gangs
        gang = next((each for uid in gangs.members(key) if (each := gangs.gang_of(uid)) is not None), None)
        if gang is None:
            return ()
        found = self.look(gang)
        return () if found.begun or found.is_complete else found.holding

    def plan(self, gang: Gang, held_back: Mapping[PodUid, QueueFull], work: StepBudget) -> GangPlan:
        """Plans the missing pods of a gang together. Changes nothing.

        Args:
            gang: the gang.
            held_back: pods that their queue's maximum holds back.
            work: pays for it. A gang may take more than is left, so that it is decided at last.
        """
        found = self.look(gang)
        gang = found.gang
        everyone = dict.fromkeys((pod.uid for pod in found.ready), False)
        returned = () if found.begun else found.holding
        if not found.is_complete:
            incomplete = GangIncomplete(gang.name, gang.size, found.exist, found.held)
            return GangPlan(refused=everyone, reason=incomplete, returned=returned)
        pods = found.ready[: found.missing]
        hopeless = self._too_large(gang, pods) or self._queue_reason(pods, held_back) or self._short(found, pods)
        if hopeless is not None:
            return GangPlan(refused=everyone, reason=hopeless, returned=returned)
        steps = max(DECISION_STEPS, len(pods) * GANG_POD_STEPS)
        own = StepBudget(steps)
        last = min(pods, key=lambda pod: pod.priority)
        reserved = [each for each in reservations_before(self._state, last) if each.gang != gang.key]
        outcomes, dependent = self._planner.plan_beside(reserved, pods, {}, own)
        work.spend(steps - own.remaining)
        placed = tuple(one for one in outcomes if isinstance(one, Placed))
        if len(placed) == len(pods):
            return GangPlan(placed=placed)
        refused = next((one for one in outcomes if isinstance(one, Unplaced)), None)
        fit = gang.size - found.missing + len(placed)
        member = refused.pod if refused is not None else pods[len(outcomes) - 1]
        reason = GangNoRoom(gang.name, gang.size, fit, member.key, refused.reason if refused is not None else None)
        return GangPlan(refused=everyone | dict.fromkeys(dependent, True), reason=reason, returned=returned)

    def _queue_reason(self, pods: Sequence[PodInfo], held_back: Mapping[PodUid, QueueFull]) -> QueueFull | None:
        """Returns the reason if a queue may not hold its pods of the gang together."""
        queues: dict[str, list[PodInfo]] = {}
        for pod in pods:
            queues.setdefault(self._state.cluster.queue_of(pod), []).append(pod)
        for queue, members in queues.items():
            known = self._state.cluster.queues.get(queue)
            if known is None or known.maximum is None:
                continue
            together = add_holdings(holding_of(self._state, pod) for pod in members)
            reserved = reserved_for_others(self._state, queue, members[0])
            if self._state.ledger.is_above_maximum(queue, add_holdings([together, reserved])):
                account = self._state.ledger.account(queue)
                never = (together.gib if known.maximum.gib else together.total) > known.maximum.amount
                held = f"{account.gib}Gi" if known.maximum.gib else f"{account.held.total()} memory slots"
                profiles = tuple(profile for pod in members for profile in pod.profiles)
                return QueueFull(profiles, queue, known.maximum.text, held, never)
        return next((held_back[pod.uid] for pod in pods if pod.uid in held_back), None)

    def _too_large(self, gang: Gang, pods: Sequence[PodInfo]) -> GangTooLarge | None:
        """Returns the reason if all cards together are certainly too small, even empty."""
        fleet = self._state.inventory.fleet
        wanted = Counter(profile for pod in pods for profile in pod.profiles)
        for profile, count in sorted(wanted.items()):
            most = _most_slices(fleet, profile)
            if 0 < most < count:  # a profile that no card has is refused as such
                return GangTooLarge(gang.name, gang.size, f"{count} x {profile}", f"{most} x {profile}")
        slots = sum(_least_slots(fleet, profile) * count for profile, count in wanted.items())
        total = sum(geometry.slots * states.total() for geometry, states in fleet.histogram().items())
        if fleet.tables and slots > total:
            return GangTooLarge(gang.name, gang.size, f"{slots} memory slots", f"{total} memory slots")
        return None

    def _short(self, found: GangState, pods: Sequence[PodInfo]) -> GangNoRoom | None:
        """Returns the reason if the free slots are certainly too few; so a full cluster costs no planning."""
        fleet = self._state.inventory.fleet
        wanted = Counter(profile for pod in pods for profile in pod.profiles)
        for profile, count in sorted(wanted.items()):
            asking = [pod for pod in pods if profile in pod.profiles]
            room = self._free_places(asking, profile)
            if room < count and _most_slices(fleet, profile):
                fitting = _fitting(asking, profile, room)
                fit = found.gang.size - found.missing + len(pods) - len(asking) + fitting
                reason = self._no_room(profile, count)
                return GangNoRoom(found.gang.name, found.gang.size, fit, asking[fitting].key, reason)
        return None

    def _free_places(self, pods: Sequence[PodInfo], profile: str) -> int:
        """Returns an upper bound of the slices of a profile that fit now on nodes that are open to one of the pods."""
        able = 0
        for constraints in {pod.constraints for pod in pods}:
            able |= self._state.cluster.index.open_to(constraints)
        room = self._rooms.get((able, profile))
        if room is None:
            room = self._rooms[able, profile] = _free_places(self._states(able), profile)
        return room

    def _states(self, able: int) -> Iterable[tuple[Geometry, Mapping[int, int]]]:
        """Returns the cards by state: of these nodes if they are few, else of all."""
        fleet = self._state.inventory.fleet
        if able.bit_count() > _FEW_NODES:
            return fleet.histogram().items()
        states: dict[Geometry, dict[int, int]] = {}
        for name in self._state.cluster.index.names(able):
            for card in fleet.cards(name) if name in fleet else ():
                alike = states.setdefault(card.geometry, {})
                alike[card.instances] = alike.get(card.instances, 0) + 1
        return states.items()

    def _no_room(self, profile: str, count: int) -> Reason:
        fleet = self._state.inventory.fleet
        histogram = fleet.histogram().items()
        free = {(geometry, state): free_slots(geometry, state) for geometry, states in histogram for state in states}
        total = sum(free[geometry, state] * cards for geometry, states in histogram for state, cards in states.items())
        if total < count * _least_slots(fleet, profile):
            return Full((profile,) * count)
        return Fragmented((profile,) * count, max(free.values()), total=total)


def _fitting(pods: Sequence[PodInfo], profile: str, room: int) -> int:
    """Returns how many of these pods find a place for their slices of a profile, in order."""
    for number, pod in enumerate(pods):
        room -= pod.profiles.count(profile)
        if room < 0:
            return number
    return len(pods)


def _free_places(cards: Iterable[tuple[Geometry, Mapping[int, int]]], profile: str) -> int:
    """Returns how many slices of a profile the free slots of cards in these states hold."""
    found = 0
    for geometry, states in cards:
        row = geometry.find(profile)
        if row is not None:
            found += sum(_places_on(geometry, row, state) * alike for state, alike in states.items())
    return found


def _places_on(geometry: Geometry, row: Profile, occupancy: int) -> int:
    """Returns how many slices of a profile a card in this state still holds. Taking the first legal start is best."""
    count = 0
    for start in sorted(row.starts):
        claim = geometry.claim(row, start)
        if not occupancy & claim:
            occupancy |= claim
            count += 1
    return count


def _most_slices(fleet: Fleet, profile: str) -> int:
    """Returns an upper bound of the slices of a profile that the empty cards hold."""
    rows = ((geometry.find(profile), states.total()) for geometry, states in fleet.histogram().items())
    return sum(row.max_count * cards for row, cards in rows if row is not None)


def _least_slots(fleet: Fleet, profile: str) -> int:
    """Returns the fewest memory slots that a slice takes on any card; 0 if no card has the profile."""
    rows = (table.geometry.find(profile) for table in fleet.tables)
    return min((row.size for row in rows if row is not None), default=0)


@dataclass(slots=True)
class Turns:
    """Who is planned, in order.

    Attributes:
        pods: pods that are planned alone, and for each gang one of its pods.
        gangs: by such a pod, its gang.
        members: the pods that have their turn with a gang.
    """

    pods: list[PodInfo] = field(default_factory=list)
    gangs: dict[PodUid, Gang] = field(default_factory=dict)
    members: set[PodUid] = field(default_factory=set)


def take_turns(batch: Sequence[PodInfo], held_back: Iterable[PodInfo], planner: GangPlanner) -> Turns:
    """Returns the turns of a batch.

    Args:
        batch: the first waiting pods, in order.
        held_back: pods of the same time that their queue's maximum holds back.
        planner: knows the gangs.
    """
    turns = Turns()
    found: dict[str, GangState] = {}
    places: dict[str, dict[PodUid, int]] = {}
    pods = [*batch, *held_back]
    for index, pod in enumerate(pods):
        gang = planner.gang_of(pod)
        if gang is None:
            continue
        if gang.key not in found:
            found[gang.key] = planner.look(gang)
        if found[gang.key].missing or not found[gang.key].gang.size:
            places.setdefault(gang.key, {})[pod.uid] = index
            turns.members.add(pod.uid)
    ends = {_end(found[key], known, len(pods)): key for key, known in places.items()}
    last = [key for key, known in places.items() if _end(found[key], known, len(pods)) == len(pods)]
    for index, pod in enumerate(pods):
        if pod.uid not in turns.members:
            if index < len(batch):
                turns.pods.append(pod)
        elif index in ends:
            turns.pods.append(pod)
            turns.gangs[pod.uid] = found[ends[index]].gang
    for key in last:
        pod = pods[max(places[key].values())]
        turns.pods.append(pod)
        turns.gangs[pod.uid] = found[key].gang
    return turns


def _end(found: GangState, places: dict[PodUid, int], count: int) -> int:
    """Returns the index of the last pod that the gang needs; ``count`` if one of them is not among the pods."""
    needed = found.ready[: found.missing]
    if not found.is_complete or any(pod.uid not in places for pod in needed):
        return count
    return max(places[pod.uid] for pod in needed)
