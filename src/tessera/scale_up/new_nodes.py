"""Decides how many new nodes of each known group the waiting pods need. Pure.

A pod behind a scheduling gate is invisible to autoscalers, so Tessera asks in its place. Rules:

1. A pod counts if it waits for Tessera alone, planning has refused it, and a new node of a group admits it: labels,
   taints, cards, and amounts where the group states them, or where nodes of the group have been seen. So pods that no
   group takes keep none of the places of :data:`SCALE_UP_PODS`.
2. Pods that rules about other pods or their volumes keep off nodes do not count: nobody knows if a new node would do.
3. A node of a group that has not listed its cards yet will have them: it counts as an empty node, until its time to
   start is over.
4. Pods that one group alone admits count first. A pod that several admit goes where these, and nodes that start, leave
   room for it; else to the first of its groups in the file.
5. A request for which new nodes of a group were of no use (:mod:`tessera.scale_up.useless_nodes`) does not
   count for the group while its pause lasts; after that, all such requests together get one node.
6. The number is the smallest that :mod:`tessera.scale_up.empty_nodes` finds for all pods that any number
   would take; at most the group's.
"""

import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import msgspec

from tessera.api.names import QUOTA_RESOURCE, NodeName
from tessera.api.nodes.node_groups import NodeGroup
from tessera.controller.objects.pod_constraints import NodeConstraints, admits_node, is_tolerated
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.objects.resource_amounts import Amounts
from tessera.placement.demand import StepBudget
from tessera.scale_up.empty_nodes import empty_nodes
from tessera.scale_up.patterns import Pace
from tessera.scale_up.useless_nodes import RequestKind, Standing, request_kind

#: Most pods: waiting pods for which Tessera asks for new nodes at a time, the first in order that new nodes could take.
#: As many as one step plans; the others follow when these have their nodes.
SCALE_UP_PODS = 1_000
#: Most steps of the search for the fewest new nodes with whole cards or shares, for all groups together. About 0.5 s of
#: CPU, in parts of some ms; then the number may be too large, never too small.
PACKING_STEPS = 40_000
#: Most steps: the same of one group, where the share of each is less. Enough for a few kinds of pods.
PACKING_STEPS_OF_GROUP = 1_000

#: Begin of the resources that a new node's cards give, or that Tessera offers for them.
_OF_CARDS = ("nvidia.com/", "org.instaslice/")
#: Effects of taints that keep pods off a node.
_REPELLING = frozenset({"NoSchedule", "NoExecute"})

#: Pods with equal slices or devices, constraints and amounts go onto the same nodes.
_Kind = tuple[tuple[str, ...], NodeConstraints, tuple[tuple[str, int], ...]]


class NewNodes(msgspec.Struct, frozen=True):
    """The nodes of one group that should be asked for.

    Attributes:
        count: their number, beside those that have registered; 0 if these suffice.
        pods: keys of the pods that would run on them, or on nodes that are starting.
        least: of CPU and so on, what each of these pods asks for at least; see :func:`least_amounts`.
    """

    count: int
    pods: tuple[str, ...] = ()
    least: Amounts = {}


async def plan_new_nodes(
    waiting: Iterable[PodInfo],
    groups: Sequence[NodeGroup],
    starting: Mapping[str, int],
    seen: Mapping[str, Amounts] = MappingProxyType({}),
    standings: Mapping[str, Mapping[RequestKind, Standing]] = MappingProxyType({}),
) -> Mapping[str, NewNodes]:
    """Returns the nodes to ask for, by group; groups on whose new nodes no pod counts are left out.

    Args:
        waiting: the pods that count by rules 1 and 2, the first in order first.
        groups: the known groups.
        starting: by group, nodes that have registered and not listed their cards.
        seen: by group, the largest amounts that pods could request on a node of it; without a group where none was
            seen, or where the next node may be larger.
        standings: by group, the requests for which new nodes were of no use.
    """
    steps = max(PACKING_STEPS_OF_GROUP, PACKING_STEPS // max(1, len(groups)))
    nodes = [
        _Group(group, starting.get(group.name, 0), steps, seen.get(group.name), standings.get(group.name, {}))
        for group in groups
    ]
    flexible: list[tuple[PodInfo, Sequence[_Group]]] = []
    kinds: dict[_Kind, int] = {}
    kinds_of: Counter[str] = Counter()
    pace = Pace(StepBudget(sys.maxsize))
    left = int(SCALE_UP_PODS)
    for pod in waiting:
        if not left:
            break
        await pace.step(1 + len(nodes))
        kind = (pod.profiles, pod.constraints, tuple(sorted(pod.amounts.items())))
        if kind not in kinds:
            if kinds_of[pod.namespace] >= SCALE_UP_PODS:  # a namespace could have as many kinds as pods
                continue
            kinds_of[pod.namespace] += 1
        number = kinds.setdefault(kind, len(kinds))
        admitting = [each for each in nodes if await each.admits(number, pod)]
        left -= bool(admitting)
        if len(admitting) == 1:
            admitting[0].add(pod)
        elif admitting:
            flexible.append((pod, admitting))
    for each in nodes:
        fitting = await each.fill([pod for pod, admitting in flexible if each in admitting and not each.tries(pod)])
        flexible = [(pod, admitting) for pod, admitting in flexible if pod.key not in fitting]
        await pace.step(1 + len(flexible))
    for pod, choices in flexible:
        min(choices, key=lambda each: each.tries(pod)).add(pod)
    found = {each.name: await each.count_needed() for each in nodes}
    return {name: needed for name, needed in found.items() if needed.pods}


class _Group:
    """New nodes of one group, and those that start.

    Attributes:
        name: the group's name.
        pods: the pods that count for it, in their order.
    """

    def __init__(
        self,
        group: NodeGroup,
        starting: int,
        steps: int,
        seen: Amounts | None,
        standings: Mapping[RequestKind, Standing],
    ) -> None:
        self.name = group.name
        self.pods: list[PodInfo] = []
        self._most = group.most
        self._starting = starting
        self._seen = seen
        self._standings = standings
        #: Pods whose pause is over; of none of them ``pods`` has one.
        self._on_trial: list[PodInfo] = []
        self._nodes = empty_nodes(group, steps)
        self._labels = group.all_labels()
        self._taints = [taint for taint in group.kept_taints() if taint.effect in _REPELLING]
        #: By kind of pod, whether an empty node takes it.
        self._taken: dict[int, bool] = {}

    async def admits(self, kind: int, pod: PodInfo) -> bool:
        """True if an empty node of the group takes the pod, and so each of its kind, and it may count."""
        if kind not in self._taken:
            self._taken[kind] = (
                admits_node(pod.constraints, NodeName(""), self._labels)
                and all(is_tolerated(taint, pod.constraints.tolerations) for taint in self._taints)
                and self._is_large_enough(pod)
                and await self._nodes.takes(pod)
            )
        return self._taken[kind] and self._standing(pod) is not Standing.PAUSED

    def _standing(self, pod: PodInfo) -> Standing | None:
        return self._standings.get(request_kind(pod)) if self._standings else None

    def tries(self, pod: PodInfo) -> bool:
        """True if the pause of the pod's request is over."""
        return self._standing(pod) is Standing.ON_TRIAL

    def add(self, pod: PodInfo) -> None:
        """Lets a pod count for the group."""
        (self._on_trial if self.tries(pod) else self.pods).append(pod)

    def _is_large_enough(self, pod: PodInfo) -> bool:
        """True unless the nodes that were seen are too small for the pod."""
        seen = self._seen
        return seen is None or all(amount <= seen.get(name, 0) for name, amount in least_amounts([pod]).items())

    async def fill(self, more: Sequence[PodInfo]) -> frozenset[str]:
        """Adds pods for which the nodes that are needed anyway have room; returns their keys."""
        count = self._starting + (await self._count(self.pods, self._most)).count if more else 0
        if not count:
            return frozenset()
        # Each node takes a pod at least, so no more nodes than pods are worth a look.
        fitting = await self._nodes.fill(self.pods, more, min(count, len(self.pods) + len(more)))
        self.pods.extend(pod for pod in more if pod.key in fitting)
        return fitting

    async def count_needed(self) -> NewNodes:
        """Returns the new nodes that its pods need beside those that start."""
        needed = await self._count(self.pods, self._most)
        if not self._on_trial:
            return needed
        # While a node starts, no further one is asked for: the first shows whether the next would be of use. The
        # node is asked for with the least amounts of all these requests, so a request that no machine can take does
        # not keep the node from the others.
        more = min(self._most, needed.count + (not self._starting))
        found = await self._count([*self.pods, *self._on_trial], more)
        if not found.pods:
            return found
        counting = {pod.key: pod for pod in [*self.pods, *self._on_trial]}
        tried = dict.fromkeys([*found.pods, *(pod.key for pod in self._on_trial)])
        return NewNodes(found.count, tuple(tried), least_amounts([counting[key] for key in tried]))

    async def _count(self, pods: Sequence[PodInfo], most: int) -> NewNodes:
        most = min(self._starting + most, len(pods))
        if not most:
            return NewNodes(0)
        needed = await self._nodes.count(pods, min(self._starting, most), most)
        placed = [pod for pod in pods if pod.key in needed.pods]
        return NewNodes(max(0, needed.count - self._starting), tuple(pod.key for pod in placed), least_amounts(placed))


def least_amounts(pods: Sequence[PodInfo]) -> Amounts:
    """Returns what each of these pods asks for at least, beside cards: a node with less is of use to none of them.

    It is not the largest amount: one pod that asks for more than any machine has would keep the nodes from the others.
    """
    first, *others = pods or (None,)
    if first is None:
        return {}
    names = (name for name in first.amounts if not _is_of_cards(name) and name != "pods")
    least = {name: min(pod.amounts.get(name, 0) for pod in (first, *others)) for name in names}
    return {name: amount for name, amount in least.items() if amount}


def _is_of_cards(resource: str) -> bool:
    return resource.startswith(_OF_CARDS) or resource == QUOTA_RESOURCE
