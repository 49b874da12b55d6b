"""Plans where pods could go, from the cluster's state, allocations and the filters of one batch. Decides nothing.

Planning asks for the first filter that refuses, which is enough to pass a node over. A person who removes that
obstacle and meets the next was told too little, so :meth:`Planner.objections` asks every filter.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from tessera.api.names import NodeName, PodUid
from tessera.controller.cluster.cluster_state import Observed
from tessera.controller.filters.avoidance import NodeAvoidance
from tessera.controller.filters.node_filters import MISMATCH, closed_because, shortages
from tessera.controller.filters.pod_affinity import HostPorts, PodAffinityFilter
from tessera.controller.filters.resources import AvoidedNodes, Filter, FreeAmounts, FreeDevices, OfferedDevices
from tessera.controller.filters.volumes import VolumeFilter
from tessera.controller.objects.node_constraints import admits_node
from tessera.controller.objects.node_info import NodeInfo
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.objects.pod_relations import NO_RELATIONS
from tessera.controller.objects.resource_amounts import Amounts, NodeUsage, add_amounts
from tessera.controller.slicing.allocation_table import AllocationTable
from tessera.controller.slicing.batch_placement import RELEASING, Placed, PlacementContext, Unplaced, place
from tessera.controller.slicing.fleet_inventory import FleetInventory
from tessera.placement.step_budget import StepBudget


class Planner(Observed):
    """Observations beside promises, and the questions about room that planning and ``tessera why`` ask.

    Attributes:
        ledger: promises, by node and by pod.
        inventory: the cards and what stands on them.
        avoidance: nodes that owners of refused pods avoid.
    """

    def __init__(self) -> None:
        super().__init__()
        self.ledger = AllocationTable()
        self.inventory = FleetInventory()
        self.avoidance = NodeAvoidance()
        self._charges = NodeUsage()

    @property
    def used(self) -> Mapping[NodeName, Amounts]:
        """Amounts of each node that pods and promises hold, besides slices."""
        return self._charges.used

    def _used_without_slices(self, node: NodeName) -> Amounts:
        """Amounts that pods without slices hold on a node."""
        left = dict(self.used.get(node, {}))
        for allocation in self.ledger.on(node):
            pod = self.pods.get(allocation.uid)
            if pod is not None and not pod.finished and not allocation.given_up:
                add_amounts(left, pod.amounts, sign=-1)
        return left

    def placed(self, pods: Sequence[PodInfo]) -> Sequence[Placed | Unplaced]:
        """Plans these pods as if no other pod waited. Promises nothing."""
        work = StepBudget(sys.maxsize)
        with self._judging(work) as judges:
            return place(pods, self._surroundings({}, judges), work)

    def objections(self, pod: PodInfo) -> Mapping[NodeName, tuple[str, ...]]:
        """By node with sliced cards, everything besides room on its cards that keeps the pod from it."""
        nodes = [self.nodes[name] for name in map(NodeName, self.inventory.fleet.nodes) if name in self.nodes]
        with self._judging(StepBudget(sys.maxsize)) as judges:
            return {
                node.name: objections(pod, node, judges=judges, used=self.used.get(node.name, {}), ledger=self.ledger)
                for node in nodes
            }

    def _surroundings(
        self, since: Mapping[PodUid, frozenset[NodeName] | None], judges: Sequence[Filter]
    ) -> PlacementContext:
        return PlacementContext(
            fleet=self.inventory.fleet,
            nodes=self.nodes,
            index=self.index,
            judges=judges,
            ledger=self.ledger,
            home_of=self.home_of,
            grown_since=since,
        )

    @contextmanager
    def _judging(self, work: StepBudget) -> Iterator[Sequence[Filter]]:
        """The rules about what stands on nodes, for one batch; in the order of the scheduler's filters."""
        neighbours = PodAffinityFilter(self.neighbours, self.index, work)
        volumes = (VolumeFilter(self.storage, self.neighbours, self.index),) if self.storage_listed else ()
        try:
            yield (
                AvoidedNodes(self.avoidance),
                HostPorts(self.neighbours, work),
                FreeAmounts(self.nodes, self.used),
                OfferedDevices(self.nodes, self.used, self._used_without_slices),
                FreeDevices(self.nodes, self.used),
                *volumes,
                neighbours,
            )
        finally:
            neighbours.end()


def depends_on_pods_or_volumes(pod: PodInfo, judges: Sequence[Filter]) -> bool:
    """Tells if other pods or volumes restrict where a pod may run; its batch was planned with these judges."""
    if pod.relations != NO_RELATIONS or pod.ports or pod.claims:
        return True
    return any(isinstance(judge, PodAffinityFilter) and judge.opposed(pod) for judge in judges)


def objections(
    pod: PodInfo, node: NodeInfo, *, judges: Sequence[Filter], used: Amounts, ledger: AllocationTable
) -> tuple[str, ...]:
    """The rules by which a node refuses a pod, in the words of the scheduler's events.

    Args:
        pod: the pod.
        node: the node.
        judges: the rules about what stands on nodes.
        used: what is held on the node besides slices.
        ledger: existing promises.
    """
    return tuple(dict.fromkeys(_objections(pod, node, judges, used, ledger)))


def _objections(
    pod: PodInfo, node: NodeInfo, judges: Sequence[Filter], used: Amounts, ledger: AllocationTable
) -> Iterator[str]:
    yield from closed_because(pod.constraints, node)
    if not admits_node(pod.constraints, node.name, node.labels):
        yield MISMATCH
    yield from shortages(pod.amounts, used, node)  # a judge of amounts names the first only
    yield from filter(None, (judge.refusal(pod, node.name) for judge in judges if not judge.freed_with_cards))
    if ledger.get(node.name, pod.uid) is not None:
        yield RELEASING.rule
