"""How many empty nodes of a group pods need, for both sorts of groups.

Nodes with slices are planned as real ones are, with the exact packing of each card
(:func:`tessera.placement.plan.plan_in_parts`). Whole cards, and shares, of a node are alike. So they are one more
amount of the node, and :mod:`tessera.scale_up.node_packing` finds the number.

Both work in steps, and let the process do its other work between two parts of some milliseconds each.
"""

import asyncio
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Protocol, cast

import msgspec

from tessera.api.nodes.node_groups import NodeGroup
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.objects.resource_amounts import Amounts, add_amounts
from tessera.limits import DECISION_STEPS
from tessera.placement.batch import Plan
from tessera.placement.demand import Demand, Parts, StepBudget
from tessera.placement.fleet import Fleet
from tessera.placement.plan import plan_in_parts
from tessera.reasons.node_rules import NodeRule, RuleKind
from tessera.scale_up.node_packing import CHECKS_A_STEP, add, least_count, pack
from tessera.scale_up.patterns import PART, Pace, Vector, copies

#: Parts of a plan, with fewer than :data:`PART` steps together, after which other work of the process comes first.
_PARTS = 10
#: Cards after which other work of the process comes first, while planned nodes are made: some milliseconds.
_CARDS_A_PART = 200
#: Steps that a card of a planned node costs.
_STEPS_A_CARD = 4
#: Plans of the largest size that one number of nodes may take.
_PLANS = 8


class Needed(msgspec.Struct, frozen=True):
    """The empty nodes that pods need.

    Attributes:
        count: their number.
        pods: keys of the pods that go onto them.
    """

    count: int
    pods: frozenset[str]


class EmptyNodes(Protocol):
    """The empty nodes of one group."""

    async def takes(self, pod: PodInfo) -> bool:
        """True if one node takes the pod."""
        ...

    async def count(self, pods: Sequence[PodInfo], least: int, most: int) -> Needed:
        """Returns the smallest number that was found, from ``least`` to ``most``.

        If the most are too few, the pods that get no place are late in the order.

        Args:
            pods: pods that one node takes, the first in order first.
            least: nodes that there are anyway.
            most: the most nodes.
        """
        ...

    async def fill(self, pods: Sequence[PodInfo], more: Sequence[PodInfo], count: int) -> frozenset[str]:
        """Returns the keys of those of ``more`` that so many nodes take beside ``pods``."""
        ...


def empty_nodes(group: NodeGroup, steps: int) -> EmptyNodes:
    """Returns the empty nodes of a group; a search for whole cards and shares may take so many steps."""
    return SliceNodes(group) if group.devices is None else DeviceNodes(*group.devices, group.amounts(), steps)


class DeviceNodes:
    """Nodes with whole cards or shares.

    Args:
        resource: the resource.
        count: the cards or shares of a node.
        amounts: the other amounts of a node that its group states.
        steps: the steps of one search.
    """

    def __init__(self, resource: str, count: int, amounts: Mapping[str, int], steps: int) -> None:
        self._resource = resource
        self._names = sorted(amounts)
        self._capacity: Vector = (count, *(amounts[name] for name in self._names))
        self._steps = steps
        #: The last result, by the requests and the most nodes.
        self._last: tuple[object, list[Vector] | None] = (None, None)

    async def takes(self, pod: PodInfo) -> bool:
        """Implements :class:`EmptyNodes`."""
        return set(pod.profiles) == {self._resource} and copies(self._capacity, self._vector(pod)) > 0

    async def count(self, pods: Sequence[PodInfo], least: int, most: int) -> Needed:
        """Implements :class:`EmptyNodes`."""
        packed = await self._pack(pods, most)
        if packed is not None:
            return Needed(max(least, len(packed)), frozenset(pod.key for pod in pods))
        free = [self._capacity] * most
        return Needed(most, await self._add(free, pods))

    async def fill(self, pods: Sequence[PodInfo], more: Sequence[PodInfo], count: int) -> frozenset[str]:
        """Implements :class:`EmptyNodes`."""
        if await self._pack([*pods, *more], count) is not None:
            return frozenset(pod.key for pod in more)
        packed = await self._pack(pods, count)
        if packed is None:
            return frozenset()
        return await self._add([*packed, *[self._capacity] * (count - len(packed))], more)

    async def _pack(self, pods: Sequence[PodInfo], most: int) -> list[Vector] | None:
        requests = Counter(map(self._vector, pods))
        key = (frozenset(requests.items()), most)
        if self._last[0] != key:
            self._last = (key, await pack(self._capacity, requests, most, StepBudget(self._steps)))
        return self._last[1]

    async def _add(self, free: list[Vector], pods: Sequence[PodInfo]) -> frozenset[str]:
        found: set[str] = set()
        full: set[Vector] = set()
        pace = Pace(StepBudget(sys.maxsize))
        for pod in pods:
            vector = self._vector(pod)
            if vector in full:
                continue
            await pace.step(1 + len(free) // CHECKS_A_STEP)
            if add(free, vector):
                found.add(pod.key)
            else:
                full.add(vector)
        return frozenset(found)

    def _vector(self, pod: PodInfo) -> Vector:
        return (len(pod.profiles), *(pod.amounts.get(name, 0) for name in self._names))


class SliceNodes:
    """Nodes with slices.

    Args:
        group: the group.
    """

    def __init__(self, group: NodeGroup) -> None:
        self._geometry, self._cards, self._amounts = group.geometry, group.cards.count, group.amounts()
        #: Empty nodes; each plan uses as many as it asks for. They keep what is known of the states of such cards.
        self._fleet = Fleet()

    async def takes(self, pod: PodInfo) -> bool:
        """Implements :class:`EmptyNodes`."""
        if not all(map(self._geometry.find, pod.profiles)):
            return False
        return bool((await self._place([pod], 1, StepBudget(int(DECISION_STEPS)))).placed)

    async def count(self, pods: Sequence[PodInfo], least: int, most: int) -> Needed:
        """Implements :class:`EmptyNodes`.

        If the steps do not suffice for all pods, the others ask for no more nodes than one amount alone shows.
        """
        work = StepBudget(_PLANS * int(DECISION_STEPS))
        count = lowest = min(most, max(least, self._least_count(pods)))
        found = await self._place(pods, count, work)
        while found.missing and count < most and not work.is_spent:
            pods = [pod for pod in pods if pod.key in found.placed or pod.key in found.missing]
            missing = [pod for pod in pods if pod.key in found.missing]
            count = min(most, count + max(1, self._least_count(missing)))
            found = await self._place(pods, count, work)
        # Fewer may do if they are packed otherwise.
        while count > lowest and len(found.placed) == len(pods) and not work.is_spent:
            fewer = await self._place(pods, count - 1, work)
            if len(fewer.placed) < len(pods):
                break
            count -= 1
        return Needed(count, found.placed)

    async def fill(self, pods: Sequence[PodInfo], more: Sequence[PodInfo], count: int) -> frozenset[str]:
        """Implements :class:`EmptyNodes`."""
        found = await self._place([*pods, *more], count, StepBudget(int(DECISION_STEPS)))
        return found.placed & {pod.key for pod in more}

    def _least_count(self, pods: Sequence[PodInfo]) -> int:
        """Returns a number of nodes below which these pods do not fit, by slots or by another amount."""
        names = sorted(self._amounts)
        capacity = (self._geometry.slots * self._cards, *(self._amounts[name] for name in names))
        requests = Counter((self._slots(pod), *(pod.amounts.get(name, 0) for name in names)) for pod in pods)
        return least_count(capacity, requests)

    def _slots(self, pod: PodInfo) -> int:
        return sum(self._geometry.profile(profile).size for profile in pod.profiles)

    async def _place(self, pods: Sequence[PodInfo], count: int, work: StepBudget) -> "_Placed":
        """Plans the pods on so many empty nodes: all of them with much CPU or memory first, else in their order."""
        if not (count and pods):
            return _Placed(frozenset(), frozenset(pod.key for pod in pods))
        large_first = sorted(pods, key=lambda pod: -self._largest_part(pod))
        if large_first != list(pods):
            found = await self._plan(large_first, count, work)
            if len(found.placed) == len(pods):
                return found
        return await self._plan(pods, count, work)

    def _largest_part(self, pod: PodInfo) -> float:
        """Returns the largest part of a node that the pod takes of an amount other than slices."""
        return max((pod.amounts.get(name, 0) / max(1, whole) for name, whole in self._amounts.items()), default=0.0)

    async def _plan(self, pods: Sequence[PodInfo], count: int, work: StepBudget) -> "_Placed":
        await self._resize(count, work)
        room = _Room(pods, self._amounts)
        demands = [
            Demand(key=pod.key, profiles=pod.profiles, priority=pod.priority, arrival=float(place))
            for place, pod in enumerate(pods)
        ]
        steps = max(1, min(int(DECISION_STEPS), work.remaining))
        part = StepBudget(steps)
        planned = await _finish(plan_in_parts(self._fleet, demands, room.allows, reservations=room, work=part), part)
        work.spend(steps - part.remaining)
        placed = frozenset(planned.assignments)
        return _Placed(placed, frozenset(pod.key for pod in pods) - placed - planned.postponed)

    async def _resize(self, count: int, work: StepBudget) -> None:
        """Brings the fleet to so many empty nodes."""
        changed = 0
        while self._fleet.node_count != count:
            present = self._fleet.node_count
            if present > count:
                self._fleet.remove_node(f"{present - 1}")
            for number in range(self._cards if present < count else 0):
                self._fleet.add_card(f"{present}", f"{present}-{number}", self._geometry)
            changed += self._cards
            work.spend(_STEPS_A_CARD * self._cards)
            if changed >= _CARDS_A_PART:
                changed = 0
                await asyncio.sleep(0)


async def _finish(parts: Parts[Plan], work: StepBudget) -> Plan:
    """Runs a plan to its end, and lets other work come first after some of its steps."""
    while True:
        left = work.remaining
        for _ in range(_PARTS):
            try:
                next(parts)
            except StopIteration as end:
                await asyncio.sleep(0)
                return cast("Plan", end.value)
            if left - work.remaining >= PART:
                break
        await asyncio.sleep(0)


class _Placed(msgspec.Struct, frozen=True):
    """Keys of pods that planning placed, and of those for which it found no room; it did not decide about others."""

    placed: frozenset[str]
    missing: frozenset[str]


class _Room:
    """Counts CPU, memory and other stated amounts on the empty nodes."""

    def __init__(self, pods: Sequence[PodInfo], allocatable: Amounts) -> None:
        self._allocatable = allocatable
        self._asked = {
            pod.key: {name: amount for name, amount in pod.amounts.items() if name in allocatable} for pod in pods
        }
        self._used: dict[str, Amounts] = {}

    def allows(self, demand: Demand, node: str) -> NodeRule | None:
        used = self._used.get(node, {})
        for name, amount in self._asked[demand.key].items():
            if used.get(name, 0) + amount > self._allocatable[name]:
                return NodeRule(RuleKind.INSUFFICIENT, name)
        return None

    def reserve(self, demand: Demand, node: str) -> None:
        add_amounts(self._used.setdefault(node, {}), self._asked[demand.key])

    def unreserve(self, demand: Demand, node: str) -> None:
        add_amounts(self._used.setdefault(node, {}), self._asked[demand.key], sign=-1)
