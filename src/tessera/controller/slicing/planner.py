"""Plans possible places for pods from the cluster's state, the allocations and one batch's filters. Decides nothing.

Planning stops at the first filter that refuses, which is enough to skip a node. A person who removes that obstacle
could then meet another, so :meth:`Planner.objections` applies every filter.
"""

import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial

import msgspec

from tessera.api.names import NodeName, PodUid
from tessera.controller.cluster.filters import (
    AvoidedNodes,
    Filter,
    FreeAmounts,
    FreeDevices,
    OfferedDevices,
    amounts_short,
    shortages,
)
from tessera.controller.cluster.pod_affinity import HostPorts, PodAffinityFilter
from tessera.controller.cluster.volumes import VolumeFilter
from tessera.controller.objects.node_info import NodeInfo
from tessera.controller.objects.pod_constraints import (
    ANYWHERE,
    MISMATCH,
    NO_RELATIONS,
    admits_node,
    closed_reasons,
    keeping_off,
)
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.objects.pod_preferences import Preference, ReplicaPlaces
from tessera.controller.objects.resource_amounts import Amounts, add_amounts, describe_amount
from tessera.controller.slicing.batch_placement import RELEASING, Placed, PlacementContext, Unplaced, place
from tessera.controller.slicing.state.node_records import Reservation
from tessera.controller.slicing.state.reservation_rules import KeptAmounts, reservations_before
from tessera.controller.slicing.state.slicer_state import AllocationTable, SlicerState
from tessera.placement.demand import StepBudget
from tessera.placement.policies import MixAware
from tessera.placement.reserved_slots import hold_slots
from tessera.reasons.node_rules import NodeRule, RuleKind
from tessera.reasons.reason import NoNode, Reason


class SmallNodes:
    """Completes the reasons of one batch.

    Args:
        state: the slicer's state, which this class only reads.

    Attributes:
        cost: nodes that were looked at so far; never decreases.
    """

    def __init__(self, state: SlicerState) -> None:
        self.cost = 0
        self._state = state
        #: By profiles, constraints and resources, the amounts of the largest nodes.
        self._known: dict[Hashable, list[tuple[int, ...]]] = {}

    def complete(self, pod: PodInfo, reason: Reason | None) -> Reason | None:
        """Returns the reason with the pod's amounts, if all nodes refuse it since they are too small even when empty.

        Any other reason stays as it is, and so does this one if a node is large enough that is closed to the pod now.
        """
        if not isinstance(reason, NoNode):
            return reason
        rules = [each.rule for each in reason.counts]
        resources = [each.about for each in rules if each.kind is RuleKind.TOO_SMALL]
        if not resources or len(resources) < len(rules):
            return reason
        largest = self._largest(pod, tuple(resources))
        wanted = tuple(pod.amounts[each] for each in resources)
        most = [max(amounts, default=0) for amounts in zip(*largest, strict=True)] or [0] * len(wanted)
        lacks = [
            f"{describe_amount(each, amount)}, and the largest node has {describe_amount(each, there)}"
            for each, amount, there in zip(resources, wanted, most, strict=True)
            if amount > there
        ]
        if not lacks and any(_covers(one, wanted) for one in largest):
            return reason
        together = " and ".join(describe_amount(each, pod.amounts[each]) for each in resources)
        return msgspec.structs.replace(reason, too_small=" and ".join(lacks) or f"{together}, and no node has both")

    def _largest(self, pod: PodInfo, resources: tuple[str, ...]) -> list[tuple[int, ...]]:
        """Returns what the largest nodes have of the resources, without those of which another has as much of each."""
        key = (pod.profiles, pod.constraints, resources)
        if key not in self._known:
            found: list[tuple[int, ...]] = []
            for node in self._nodes(pod):
                amounts = tuple(_amount(node, each) for each in resources)
                if not any(_covers(one, amounts) for one in found):
                    found = [*(one for one in found if not _covers(amounts, one)), amounts]
            self._known[key] = found
        return self._known[key]

    def _nodes(self, pod: PodInfo) -> Iterator[NodeInfo]:
        """Yields the nodes that the pod selects and whose cards have its profiles; some may be closed now."""
        index, nodes = self._state.cluster.index, self._state.cluster.nodes
        for name in index.each(index.selected_nodes(pod.constraints)):
            self.cost += 1
            if self._state.profiles_by_node.get(name, frozenset()).issuperset(pod.profiles):
                yield nodes[name]


def _amount(node: NodeInfo, resource: str) -> int:
    """Returns the amount of a resource on an empty node; the largest number if kubelet has not published it yet."""
    amount = node.allocatable_amount(resource)
    return sys.maxsize if amount is None else amount


def _covers(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """True if the first amounts are at least the others."""
    return all(mine >= its for mine, its in zip(one, other, strict=True))


class Planner:
    """Finds possible places for pods; ``tessera why`` uses it too.

    Args:
        state: the slicer's state, which the planner only reads.
    """

    def __init__(self, state: SlicerState) -> None:
        self._state = state
        self._cluster = state.cluster

    def _used_without_slices(self, node: NodeName) -> Amounts:
        """Returns the amounts that pods without slices hold on a node."""
        left = dict(self._state.usage.used.get(node, {}))
        for allocation in self._state.allocations.on(node):
            pod = self._cluster.pods.get(allocation.uid)
            if pod is not None and not pod.finished and not allocation.given_up:
                add_amounts(left, pod.amounts, sign=-1)
        return left

    def plan_alone(self, pods: Sequence[PodInfo], work: StepBudget | None = None) -> Sequence[Placed | Unplaced]:
        """Plans these pods as if no other pod waited, beside the reservations of others, as far as a budget allows.

        Changes nothing.
        """
        reserved = reservations_before(self._state, pods[0]) if pods else ()
        return self.plan_beside(reserved, pods, {}, work or StepBudget(sys.maxsize))[0]

    def plan_beside(
        self,
        reserved: Sequence[Reservation],
        pods: Sequence[PodInfo],
        since: Mapping[PodUid, frozenset[NodeName] | None],
        work: StepBudget,
        node: NodeName | None = None,
    ) -> tuple[Sequence[Placed | Unplaced], AbstractSet[PodUid]]:
        """Plans pods together, as far as the budget allows. Changes nothing.

        Args:
            reserved: reservations whose slots and amounts the pods may not take.
            pods: the pods, in order.
            since: by pod, the nodes that changed since it was refused; None or missing for all nodes.
            work: the budget.
            node: all reservations are on this node, as is every place that is looked for; None for all nodes.

        Returns:
            The outcomes, and the refused pods that other pods or volumes keep off a node.
        """
        fleet = self._state.inventory.fleet
        holds = [hold for each in reserved for hold in each.holds]
        with (
            self.filters(work, KeptAmounts(self._state, reserved) if reserved else None, pods) as filters,
            hold_slots(fleet, holds, node or "") if holds or fleet.has_holds else nullcontext(),
        ):
            nodes = tuple({each.node: None for each in reserved})
            found = place(pods, self.context(since, filters, nodes), work)
            refused = [one.pod for one in found if isinstance(one, Unplaced)]
            if refused:
                small = SmallNodes(self._state)
                found = [
                    replace(one, reason=small.complete(one.pod, one.reason)) if isinstance(one, Unplaced) else one
                    for one in found
                ]
            return found, {pod.uid for pod in refused if depends_on_pods_or_volumes(pod, filters)}

    def plan_inherited(self, pod: PodInfo, own: Reservation, work: StepBudget) -> Placed | None:
        """Plans a pod on the node whose slots it inherits; None if that does not take it. Changes nothing."""
        others = [each for each in self._state.reservations.on(own.node) if not each.number and each is not own]
        since = {pod.uid: frozenset((own.node,))}
        found, _ = self.plan_beside(others, [pod], since, work, own.node)
        return next((each for each in found if isinstance(each, Placed)), None)

    def has_room(self, pod: PodInfo) -> bool:
        """False if no card has room for one of the slices beside those of all reservations that are held now."""
        fleet, rule = self._state.inventory.fleet, MixAware()
        return all(rule.first_place(fleet, each) is not None for each in set(pod.profiles))

    def objections(self, pod: PodInfo) -> Mapping[NodeName, tuple[NodeRule, ...]]:
        """Returns, by node with sliced cards, every obstacle to the pod except lack of room on the cards."""
        nodes = [
            self._cluster.nodes[name]
            for name in map(NodeName, self._state.inventory.fleet.nodes)
            if name in self._cluster.nodes
        ]
        with self.filters(StepBudget(sys.maxsize)) as filters:
            return {
                node.name: list_objections(
                    pod,
                    node,
                    filters=filters,
                    used=self._state.usage.used.get(node.name, {}),
                    allocations=self._state.allocations,
                )
                for node in nodes
            }

    def scheduler_objections(
        self, pod: PodInfo, offered: Callable[[NodeName, str], int]
    ) -> Mapping[NodeName, tuple[NodeRule, ...]]:
        """Returns, by node, every rule by which kube-scheduler refuses a pod that Tessera does not place.

        Args:
            pod: the pod, with all of its constraints and rules about other pods.
            offered: returns the amount of a resource that a node has for such pods.
        """
        with self.filters(StepBudget(sys.maxsize)) as filters:
            rules = [each for each in filters if isinstance(each, HostPorts | VolumeFilter | PodAffinityFilter)]
            return {
                node.name: tuple(
                    dict.fromkeys(
                        (
                            *keeping_off(pod.constraints, node),
                            *([] if admits_node(pod.constraints, node.name, node.labels) else [MISMATCH]),
                            *amounts_short(
                                pod.amounts, self._state.usage.used.get(node.name, {}), partial(offered, node.name)
                            ),
                            *filter(None, (rule.refusal(pod, node.name) for rule in rules)),
                        )
                    )
                )
                for node in self._cluster.nodes.values()
            }

    def preferences_met(self, pod: PodInfo, node: NodeName) -> Mapping[Preference, tuple[bool, int, int]]:
        """Returns what a pod on a node prefers, by default too, as if the pod were to come.

        Each with: the node meets it now; how many nodes do; how many of those are open to the pod.
        """
        pods = self._cluster.placed_pods
        pods.drop(pod.uid)
        try:
            with self.filters(StepBudget(sys.maxsize), pods=[pod]) as filters:
                affinity = next((each for each in filters if isinstance(each, PodAffinityFilter)), None)
                index = self._cluster.index
                every, opened = index.selected_nodes(ANYWHERE), index.open_to(pod.constraints)
                found = list(affinity.preferences(pod) if affinity is not None else ())
                images: dict[str, int] = {}
                for image, _, mask in index.images.points(pod.images, opened):
                    images[image] = images.get(image, 0) | mask
                found += [
                    (Preference(0, ANYWHERE, text=f"nodes with the image {each}"), images[each]) for each in images
                ]
                return {
                    each: (bool(mask & index.mask_of(node)), (mask & every).bit_count(), (mask & opened).bit_count())
                    for each, mask in found
                }
        finally:
            pods.put(pod, node)

    def replicas_beside(self, pod: PodInfo) -> tuple[int, int, int]:
        """Returns the other replicas of a pod's owner: of all, those on its node, and their slices on its cards."""
        pods, own = self._cluster.placed_pods, self._state.allocations.get(pod.node, pod.uid)
        pods.drop(pod.uid)
        try:  # counts are made where they are asked for, so all are asked for without the pod
            assert pod.replica_of is not None, f"{pod.key} is no replica"
            others = ReplicaPlaces(pods.replicas.get(pod.replica_of, {}), self._state.allocations.cards_of)
            total, on_node = others.total(), others.on_node(pod.node)
            if own is None:  # nobody knows its cards
                return total, on_node, on_node
            return total, on_node, sum(others.on_card(pod.node, each) for each in {one.gpu_uuid for one in own.slices})
        finally:
            pods.put(pod, pod.node)

    def only_fixed_layouts_serve(self, pod: PodInfo) -> bool:
        """True if only nodes with a fixed layout can serve a pod; such a node may have come after the pod was gated."""
        if not self._cluster.fixed_layout_nodes:
            return False
        if pod.profiles not in self._state.serving_nodes:
            made = (
                name for name, profiles in self._state.profiles_by_node.items() if profiles.issuperset(pod.profiles)
            )
            fixed = (
                name
                for name in self._cluster.fixed_layout_nodes
                if self._cluster.nodes[name].fixed_profiles.issuperset(pod.profiles)
            )
            self._state.serving_nodes[pod.profiles] = (self._mask_of(made), self._mask_of(fixed))
        made_on, fixed_on = self._state.serving_nodes[pod.profiles]
        selected = self._cluster.index.selected_nodes(pod.constraints)
        return not selected & made_on and bool(selected & fixed_on)

    def _mask_of(self, nodes: Iterable[NodeName]) -> int:
        mask = 0
        for node in nodes:
            mask |= self._cluster.index.mask_of(node)
        return mask

    def context(
        self,
        since: Mapping[PodUid, frozenset[NodeName] | None],
        filters: Sequence[Filter],
        kept_nodes: Sequence[NodeName] = (),
    ) -> PlacementContext:
        """Returns the state in which a batch is planned."""
        return PlacementContext(
            fleet=self._state.inventory.fleet,
            nodes=self._cluster.nodes,
            index=self._cluster.index,
            filters=filters,
            allocations=self._state.allocations,
            required_node=self._cluster.required_node,
            changed_nodes=since,
            kept_nodes=kept_nodes,
            price=self._state.preference_price,
            replicas=self._cluster.placed_pods.replicas,
            ratings=self._state.ratings if self._state.devices.used else None,
        )

    @contextmanager
    def filters(
        self,
        work: StepBudget,
        kept: Mapping[NodeName, Amounts] | None = None,
        pods: Sequence[PodInfo] | None = None,
    ) -> Iterator[Sequence[Filter]]:
        """Yields the rules about pods on nodes for one batch, in the order of the scheduler's filters.

        Args:
            work: pays for rules about other pods.
            kept: by node with reserved slots, the amounts in use once the reservations are taken.
            pods: the only pods to ask about: rules that concern none of them are left out; None for any pods.
        """
        cluster, used = self._cluster, self._state.usage.used
        special = pods is None or any(pod.relations != NO_RELATIONS or pod.ports or pod.claims for pod in pods)
        preferences = pods is not None and any(pod.preferences for pod in pods)
        affinity: PodAffinityFilter | None = None
        if special or preferences or cluster.placed_pods.holders:
            affinity = PodAffinityFilter(cluster.placed_pods, cluster.index, work, cluster.storage.models)
        claims = special and cluster.storage_listed
        try:
            yield (
                *((AvoidedNodes(self._state.avoidance),) if self._state.avoidance.refusals else ()),
                *((HostPorts(cluster.placed_pods, work),) if special else ()),
                FreeAmounts(cluster.nodes, used),
                *((FreeAmounts(cluster.nodes, kept),) if kept else ()),
                OfferedDevices(cluster.nodes, used, self._used_without_slices),
                FreeDevices(cluster.nodes, used),
                *((VolumeFilter(cluster.storage, cluster.placed_pods, cluster.index),) if claims else ()),
                *((affinity,) if affinity is not None else ()),
            )
        finally:
            if affinity is not None:
                affinity.end()


def depends_on_pods_or_volumes(pod: PodInfo, filters: Sequence[Filter]) -> bool:
    """True if other pods or volumes restrict the pod's nodes; its batch was planned with these filters."""
    if pod.relations != NO_RELATIONS or pod.ports or pod.claims:
        return True
    return any(isinstance(rule, PodAffinityFilter) and rule.is_opposed(pod) for rule in filters)


def list_objections(
    pod: PodInfo, node: NodeInfo, *, filters: Sequence[Filter], used: Amounts, allocations: AllocationTable
) -> tuple[NodeRule, ...]:
    """Returns the rules by which a node refuses a pod.

    Args:
        pod: the pod.
        node: the node.
        filters: the rules about pods on nodes.
        used: the amounts that pods hold on the node besides slices.
        allocations: existing allocations.
    """
    return tuple(dict.fromkeys(_objections(pod, node, filters, used, allocations)))


def _objections(
    pod: PodInfo, node: NodeInfo, filters: Sequence[Filter], used: Amounts, allocations: AllocationTable
) -> Iterator[NodeRule]:
    yield from closed_reasons(pod.constraints, node)
    if not admits_node(pod.constraints, node.name, node.labels):
        yield MISMATCH
    yield from shortages(pod.amounts, used, node)  # a filter of amounts names only the first shortage
    yield from filter(None, (rule.refusal(pod, node.name) for rule in filters if not rule.freed_with_cards))
    if allocations.get(node.name, pod.uid) is not None:
        yield RELEASING
