"""Decides how many new nodes of each known group the waiting pods need. Pure.

A pod behind a scheduling gate is invisible to autoscalers, so Tessera asks in its place. Rules:

1. A pod counts if it waits for Tessera alone, planning has refused it, and a new node of a group admits it: labels,
   taints, cards, and amounts where the group states them.
2. Pods that rules about other pods or their volumes keep off nodes do not count: nobody knows if a new node would do.
3. A node of a group that has not listed its cards yet will have them: it counts as an empty node, until its time to
   start is over.
4. Pods that one group alone admits count first. A pod that several admit goes where these, and nodes that start, leave
   room for it; else to the first of its groups in the file.
5. The number is the smallest with which planning places all pods that any number would place; at most the group's.

Planning is that of real nodes: :func:`tessera.placement.plan.plan`, with its exact packing of each card, and for whole
cards and shares with the same rating of nodes. A run of it takes as long as a step of the slicer at most; between two
runs the process does its other work.
"""

import asyncio
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

import msgspec

from tessera.api.names import NodeName
from tessera.api.nodes.node_groups import GroupKind, NodeGroup
from tessera.controller.objects.node_constraints import admits_node, is_tolerated
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.objects.resource_amounts import Amounts, add_amounts
from tessera.controller.scale_up.new_node_ratings import NewNodeRatings
from tessera.limits.planning import DECISION_STEPS
from tessera.limits.provisioning import SCALE_UP_PODS
from tessera.mig.geometry import Geometry
from tessera.placement.demand import Demand, NodeRefusal
from tessera.placement.devices import CARD_SLOTS, SHARE_SLOTS, device_geometry
from tessera.placement.fleet import Fleet
from tessera.placement.plan import plan
from tessera.placement.step_budget import StepBudget

#: An amount that a group does not state.
_UNSTATED = 1 << 60
#: Effects of taints that keep pods off a node.
_REPELLING = frozenset({"NoSchedule", "NoExecute"})


class NewNodes(msgspec.Struct, frozen=True):
    """The nodes of one group that should be asked for.

    Attributes:
        count: their number, beside those that have registered.
        pods: keys of the pods that would run on them, or on nodes that are starting.
    """

    count: int
    pods: tuple[str, ...] = ()


async def plan_new_nodes(
    waiting: Iterable[PodInfo], groups: Sequence[NodeGroup], starting: Mapping[str, int]
) -> Mapping[str, NewNodes]:
    """Returns the nodes to ask for, by group; groups that need none are left out.

    Args:
        waiting: the pods that count by rules 1 and 2, the first in order first.
        groups: the known groups.
        starting: by group, nodes that have registered and not listed their cards.
    """
    nodes = [_EmptyNodes(group, starting.get(group.name, 0)) for group in groups]
    flexible: list[tuple[PodInfo, Sequence[_EmptyNodes]]] = []
    for pod in islice(waiting, SCALE_UP_PODS):
        admitting = [each for each in nodes if await each.admits(pod)]
        if len(admitting) == 1:
            admitting[0].pods.append(pod)
        elif admitting:
            flexible.append((pod, admitting))
    for each in nodes:
        fitting = await each.fill([pod for pod, admitting in flexible if each in admitting])
        flexible = [(pod, admitting) for pod, admitting in flexible if pod.key not in fitting]
    for pod, choices in flexible:
        choices[0].pods.append(pod)
    found = {each.name: await each.count_needed() for each in nodes}
    return {name: needed for name, needed in found.items() if needed.count}


class _EmptyNodes:
    """New nodes of one group, and those that start.

    Attributes:
        name: the group's name.
        pods: the pods that count for it, in their order.
    """

    def __init__(self, group: NodeGroup, starting: int) -> None:
        self.name = group.name
        self.pods: list[PodInfo] = []
        self._group = group
        self._starting = starting
        self._geometry, self._cards = _cards_of(group)
        self._labels, self._amounts = group.all_labels(), group.amounts()
        self._taints = [taint for taint in group.kept_taints() if taint.effect in _REPELLING]
        self._holds: dict[tuple[object, ...], bool] = {}

    async def admits(self, pod: PodInfo) -> bool:
        """True if an empty node of the group takes the pod."""
        kind = (pod.profiles, pod.constraints, tuple(sorted(pod.amounts.items())))
        if kind not in self._holds:
            self._holds[kind] = (
                admits_node(pod.constraints, NodeName(""), self._labels)
                and all(is_tolerated(taint, pod.constraints.tolerations) for taint in self._taints)
                and bool(await self._place([pod], 1))
            )
        return self._holds[kind]

    async def fill(self, more: Sequence[PodInfo]) -> frozenset[str]:
        """Adds pods for which the nodes that are needed anyway have room; returns their keys."""
        if not more:
            return frozenset()
        count = self._starting + (await self.count_needed()).count
        placed = await self._place([*self.pods, *more], count)
        fitting = [pod for pod in more if pod.key in placed]
        self.pods.extend(fitting)
        return frozenset(pod.key for pod in fitting)

    async def count_needed(self) -> NewNodes:
        """Returns the new nodes that its pods need beside those that start."""
        most = self._starting + self._group.most
        least = count = min(most, max(self._starting, self._count_by_slots(self.pods)))
        placed = await self._place(self.pods, count)
        while len(placed) < len(self.pods) and count < most:
            count = min(most, count + self._count_by_slots([pod for pod in self.pods if pod.key not in placed]))
            placed = await self._place(self.pods, count)
        # Fewer may do if they are packed otherwise. Without all pods placed, ``count`` is the most.
        while count > least and len(placed) == len(self.pods):
            fewer = await self._place(self.pods, count - 1)
            if len(fewer) < len(self.pods):
                break
            count, placed = count - 1, fewer
        return NewNodes(count - self._starting, tuple(pod.key for pod in self.pods if pod.key in placed))

    def _count_by_slots(self, pods: Sequence[PodInfo]) -> int:
        """Returns a number of nodes below which these pods do not fit."""
        slots = sum(self._geometry.profile(profile).size for pod in pods for profile in pod.profiles)
        return math.ceil(slots / (self._geometry.slots * self._cards))

    async def _place(self, pods: Sequence[PodInfo], count: int) -> frozenset[str]:
        """Returns the keys of the pods that planning places on so many empty nodes."""
        if not (count and pods) or not all(map(self._geometry.find, (each for pod in pods for each in pod.profiles))):
            return frozenset()
        fleet = Fleet()
        for number in range(count):
            for card in range(self._cards):
                fleet.add_card(f"{number}", f"{number}/{card}", self._geometry)
        await asyncio.sleep(0)
        room = _Room(pods, self._amounts)
        demands = [
            Demand(key=pod.key, profiles=pod.profiles, priority=pod.priority, arrival=float(place))
            for place, pod in enumerate(pods)
        ]
        ratings = NewNodeRatings(fleet, pods, room.free) if self._group.devices is not None else None
        planned = plan(
            fleet,
            demands,
            room.allows,
            reservations=room,
            work=StepBudget(int(DECISION_STEPS)),
            rank_nodes=ratings.rank if ratings is not None else None,
        )
        return frozenset(planned.assignments)


def _cards_of(group: NodeGroup) -> tuple[Geometry, int]:
    """Returns the geometry and the number of a node's cards; a whole card or a share is one with one profile."""
    if group.devices is None:
        return group.geometry, group.cards.count
    resource, count = group.devices
    slots = CARD_SLOTS if group.cards.kind is GroupKind.WHOLE else SHARE_SLOTS
    return device_geometry(group.cards.model, resource, slots, 0), count


class _Room:
    """Counts CPU, memory and other stated amounts on the empty nodes."""

    def __init__(self, pods: Sequence[PodInfo], allocatable: Amounts) -> None:
        self._allocatable = allocatable
        self._asked = {
            pod.key: {name: amount for name, amount in pod.amounts.items() if name in allocatable} for pod in pods
        }
        self._used: dict[str, Amounts] = {}

    def allows(self, demand: Demand, node: str) -> NodeRefusal | None:
        used = self._used.get(node, {})
        for name, amount in self._asked[demand.key].items():
            if used.get(name, 0) + amount > self._allocatable[name]:
                return NodeRefusal(f"Insufficient {name}")
        return None

    def free(self, name: str, node: str) -> int:
        """Returns what is free of an amount; very much of one that the group does not state."""
        return self._allocatable.get(name, _UNSTATED) - self._used.get(node, {}).get(name, 0)

    def reserve(self, demand: Demand, node: str) -> None:
        add_amounts(self._used.setdefault(node, {}), self._asked[demand.key])

    def unreserve(self, demand: Demand, node: str) -> None:
        add_amounts(self._used.setdefault(node, {}), self._asked[demand.key], sign=-1)
