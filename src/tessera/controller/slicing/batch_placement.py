"""Places one batch of waiting pods under the scheduler's rules.

Turns pods into demands, answers placement which nodes take each pod, and turns the placements into results for the
slicer. Changes nothing except a temporary count of the resources that the batch would use on each node.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import islice

from tessera.api.instaslice import Slice
from tessera.api.names import NodeName, PodUid, device_id
from tessera.controller.cluster.filters import Filter, FreeAmounts
from tessera.controller.cluster.node_index import IMAGE_POINTS, NodeIndex
from tessera.controller.cluster.pod_affinity import PodAffinityFilter
from tessera.controller.objects.node_info import NodeInfo
from tessera.controller.objects.pod_constraints import MISMATCH, NodeConstraints, first_closed_reason
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.objects.pod_preferences import APART, Preference, ReplicaPlaces
from tessera.controller.slicing.state.device_ratings import DeviceRatings
from tessera.controller.slicing.state.slicer_state import AllocationTable
from tessera.limits import BATCH_PODS
from tessera.placement.batch import Plan
from tessera.placement.demand import Demand, StepBudget
from tessera.placement.fleet import CardPlacement, Fleet
from tessera.placement.plan import plan
from tessera.reasons.node_rules import NodeRule, RuleKind
from tessera.reasons.reason import Reason

#: Most rules about other pods and host ports of the pods that one step of the controller plans together. As many as
#: pods, so that replicas with a rule each are packed together; pods beyond are planned in further steps.
BATCH_RULES = 1_000

#: Share of a batch's work for testing constraints; comparisons that cost as much as asking one node.
_CONSTRAINTS_SHARE, _COMPARISONS_A_STEP = 0.5, 4
#: Sets of nodes that meet different preferences of a pod, of which those that meet most are looked at first.
_PARTS = 32
#: A pod with at most this many open nodes is planned on these alone.
_FEW_NODES = 64


@dataclass(frozen=True, slots=True)
class Placed:
    """A pod and the slices chosen for it."""

    pod: PodInfo
    node: NodeName
    slices: tuple[Slice, ...]


@dataclass(frozen=True, slots=True)
class Unplaced:
    """A pod that must wait, and the reason; None if only nodes that changed since its last refusal were asked again."""

    pod: PodInfo
    reason: Reason | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementContext:
    """The state in which the controller plans a batch.

    Attributes:
        fleet: the cards; planning does not change them.
        nodes: the nodes.
        index: an index of the same nodes, for constraints.
        filters: the other rules, made for this batch.
        allocations: existing allocations; a node that still takes back a pod's slices is no place for that pod.
        required_node: returns the node that an ungated pod must run on; None for any other pod.
        changed_nodes: by refused pod, the nodes where room may have grown since; None if the pod was not refused.
        kept_nodes: nodes with slots that are kept for other pods.
        price: what preferences may cost, see :class:`~tessera.placement.demand.Preferences`.
        replicas: by :attr:`PodInfo.replica_of` and node, the pods with slices.
        ratings: ranks nodes for whole cards and shares; it follows what the batch gives away. None without such.
    """

    fleet: Fleet
    nodes: Mapping[NodeName, NodeInfo]
    index: NodeIndex
    filters: Sequence[Filter]
    allocations: AllocationTable
    required_node: Callable[[PodInfo], NodeName | None]
    changed_nodes: Mapping[PodUid, frozenset[NodeName] | None]
    ratings: DeviceRatings | None
    replicas: Mapping[tuple[str, str], Mapping[NodeName, AbstractSet[PodUid]]]
    kept_nodes: Sequence[NodeName] = ()
    price: float = 0.0


def first_batch(ordered: Iterable[PodInfo]) -> list[PodInfo]:
    """Returns the first of these pods, as many as one step plans together."""
    batch: list[PodInfo] = []
    shared: set[str] = set()
    rules = 0
    for pod in islice(ordered, BATCH_PODS):
        if pod.shares in shared:
            continue
        if pod.shares:
            shared.add(pod.shares)
        rules += pod.relations.count + len(pod.ports)
        if batch and rules > BATCH_RULES:
            break
        batch.append(pod)
    return batch


def place(pods: Sequence[PodInfo], context: PlacementContext, work: StepBudget) -> Sequence[Placed | Unplaced]:
    """Plans all of these pods together, as far as the budget allows.

    Args:
        pods: the waiting pods, in order: the first goes first.
        context: the cluster's state.
        work: the budget of this batch.

    Returns:
        The outcome of each decided pod, at least one; the caller must pass the other pods again.
    """
    rules = _BatchFilters(pods, context, work.part(_CONSTRAINTS_SHARE))
    checked = pods[: rules.checked]
    kept, equals = _skip_surplus(checked, rules, context.fleet)
    demands = [rules.demand(pod, number) for number, pod in enumerate(kept)]
    decided = plan(
        context.fleet,
        demands,
        rules.allows,
        allows_when_empty=rules.allows_when_empty,
        reservations=rules,
        work=work,
        kept=context.kept_nodes,
        rank_nodes=rules.rank if context.ratings is not None else None,
        wanted=rules,
    )
    rules.end()
    placed: list[Placed | Unplaced] = []
    for pod in checked:
        slices = decided.assignments.get(pod.key)
        if slices is not None:
            placed.append(Placed(pod, NodeName(slices[0].node), slices_at(slices)))
            continue
        refused = next((one for one in equals.get(pod.key, (pod,)) if _is_refused(decided, one)), None)
        if refused is not None:
            placed.append(Unplaced(pod, decided.refusals.get(refused.key)))
    return placed


def _is_refused(decided: Plan, pod: PodInfo) -> bool:
    return pod.key not in decided.assignments and pod.key not in decided.postponed


def _skip_surplus(
    ordered: Sequence[PodInfo], rules: "_BatchFilters", fleet: Fleet
) -> tuple[list[PodInfo], dict[str, Sequence[PodInfo]]]:
    """Leaves out pods that cannot be placed because too many equal pods go first.

    Of pods that differ only in their name, at most as many fit as the free slots allow. This function keeps one pod
    more than that; the others share the reason of a kept one. So the cost of a freed slot does not grow with the number
    of waiting pods.

    Returns:
        The pods to plan, and for each omitted pod the equal pods that go first; at least one of them finds no place.
    """
    free = sum(node.free for node in fleet.fullest_nodes())
    most: dict[tuple[str, ...], int] = {}
    kinds: dict[Hashable, list[PodInfo]] = {}
    kept: list[PodInfo] = []
    equals: dict[str, Sequence[PodInfo]] = {}
    for pod in ordered:
        if pod.profiles not in most:
            most[pod.profiles] = free // count_slots(fleet, pod.profiles) + 1
        before = kinds.setdefault(rules.kinds[pod.uid], [])
        if len(before) < most[pod.profiles]:
            before.append(pod)
            kept.append(pod)
        else:
            equals[pod.key] = before
    return kept, equals


def count_slots(fleet: Fleet, profiles: Sequence[str]) -> int:
    """Returns the fewest memory slots that these slices take together on any cards of the fleet; 1 each if unknown."""
    sizes = ([table.size_of(name) for table in fleet.tables if (name := table.name_of(each))] for each in profiles)
    return sum(min(found, default=1) for found in sizes)


def slices_at(placements: Iterable[CardPlacement]) -> tuple[Slice, ...]:
    """Returns placements of one node as slices."""
    return tuple(
        Slice(
            id=device_id(at.gpu, at.profile, at.start),
            profile=at.profile,
            gpu_uuid=at.gpu,
            start=at.start,
            size=at.size,
        )
        for at in placements
    )


class _BatchFilters:
    """Applies the filters while a batch is being planned: :class:`~tessera.placement.demand.Reservations`, Preferences.

    Attributes:
        checked: number of pods, from the first on, whose constraints were tested.
        kinds: by UID, a key; every node treats pods with equal keys in the same way.
        price: what preferences may cost.
    """

    def __init__(self, ordered: Sequence[PodInfo], context: PlacementContext, work: StepBudget) -> None:
        self._ratings = context.ratings
        self.price = context.price
        self._amounts = next((rule for rule in context.filters if type(rule) is FreeAmounts), None)
        self._affinity = next((rule for rule in context.filters if isinstance(rule, PodAffinityFilter)), None)
        #: Nodes to which the batch gave pods, or from which it took them back.
        self._touched: set[NodeName] = set()
        self._nodes = context.nodes
        self._index = context.index
        self._filters = context.filters
        self._lasting_filters = [rule for rule in context.filters if not rule.freed_with_cards]
        self._allocations = context.allocations
        self._changed_nodes = context.changed_nodes
        self._required_nodes = {pod.uid: context.required_node(pod) for pod in ordered}
        self.kinds: dict[PodUid, Hashable] = {}
        #: The different constraints of the pods, numbered in order; by pod, the number of its constraints.
        self._shared: dict[NodeConstraints, int] = {}
        self._kinds: dict[PodUid, int] = {}
        #: By number of constraints, the mask of nodes that are open to such a pod.
        self._open: list[int] = []
        #: Remembered refusals, by number of constraints and closed node.
        self._closed: dict[tuple[int, str], NodeRule] = {}
        #: By number of constraints, the nodes that meet preferences, for the masks that were last asked for.
        self._parts: dict[int, tuple[Sequence[object], Sequence[object], Sequence[int]]] = {}
        #: By images and number of constraints, the images that decide.
        self._images: dict[tuple[tuple[str, ...], int], Sequence[tuple[str, int, int]]] = {}
        #: By UID of a replica, the others of its owner, those that the batch has placed included.
        self._replicas: dict[PodUid, ReplicaPlaces] = {}
        self._pods: dict[str, PodInfo] = {}
        for pod in self._check_constraints(ordered, work):
            self._pods[pod.key] = pod
        places: dict[tuple[str, str], ReplicaPlaces] = {}
        for pod in self._pods.values():
            if owner := pod.replica_of:
                if owner not in places:
                    places[owner] = ReplicaPlaces(context.replicas.get(owner, {}), context.allocations.cards_of)
                self._replicas[pod.uid] = places[owner]
        self.checked = len(self._pods)
        #: Owners of which a pod has another replica beside it.
        self._several = Counter(pod.replica_of for pod in self._pods.values())

    def _check_constraints(self, ordered: Sequence[PodInfo], work: StepBudget) -> Iterator[PodInfo]:
        for pod in ordered:
            if self._kinds and work.is_spent:
                return
            kind = self._kinds[pod.uid] = self._shared.setdefault(pod.constraints, len(self._shared))
            if kind == len(self._open):
                before = self._index.cost
                self._open.append(self._index.open_to(pod.constraints))
                work.spend(1 + (self._index.cost - before) // _COMPARISONS_A_STEP)
            self.kinds[pod.uid] = self._kind(pod)
            yield pod

    def demand(self, pod: PodInfo, number: int) -> Demand:
        """Returns the pod as placement sees it; ``number`` is its place in the order."""
        home, grown = self._required_nodes[pod.uid], self._changed_nodes.get(pod.uid)
        nodes: frozenset[str] | None = grown
        if home is not None:
            nodes = frozenset((home,))
        elif grown is None and (mask := self._open[self._kinds[pod.uid]]).bit_count() <= self._few_nodes(pod):
            nodes = self._index.names(mask)
        return Demand(
            pod.key,
            pod.profiles,
            0,
            number,
            nodes,
            spread=pod.spread,
            again=grown is not None,
            preferences=self._most_met(pod),
        )

    def _most_met(self, pod: PodInfo) -> tuple[int, int] | None:
        """Returns the most that :meth:`met` says of a pod; None if all places are worth the same."""
        others, images = self._replicas.get(pod.uid), self._image_points(pod)
        weight = sum(each.weight for each, _ in self._preferences(pod))
        alone = others is None or (self._several[pod.replica_of] < 2 and not others)
        if not weight and not images and alone:
            return None
        apart = 0 if others is None else APART
        return weight, apart * (IMAGE_POINTS + 1) + sum(points for _, points, _ in images)

    def _preferences(self, pod: PodInfo) -> Sequence[tuple[Preference, int]]:
        if self._affinity is None or not (pod.preferences or pod.claims):
            return ()
        return self._affinity.preferences(pod)

    def _image_points(self, pod: PodInfo) -> Sequence[tuple[str, int, int]]:
        """Returns the images of a pod that decide, with their points and nodes."""
        if not pod.images:
            return ()
        key = (pod.images, self._kinds[pod.uid])
        if key not in self._images:
            self._images[key] = self._index.images.points(pod.images, self._open[key[1]])
        return self._images[key]

    def _few_nodes(self, pod: PodInfo) -> int:
        """Returns the number of open nodes up to which they are listed.

        For a large gang each listed card costs too much; where most nodes are open, one of the first asked is.
        """
        return _FEW_NODES if pod.gang is None else min(_FEW_NODES, len(self._nodes) // 2)

    def met(self, demand: Demand, node: str, gpu: str = "") -> tuple[int, int]:
        """Returns the weight of what the pod prefers and the node has, and more for fewer replicas of its owner."""
        pod = self._pods[demand.key]
        others = self._replicas.get(pod.uid)
        apart = 0 if others is None else others.worth(NodeName(node), gpu) * (IMAGE_POINTS + 1)
        preferences, images = self._preferences(pod), self._image_points(pod)
        if not preferences and not images:
            return 0, apart
        bit = self._index.mask_of(NodeName(node))
        points = sum(points for _, points, mask in images if mask & bit)
        return sum(each.weight for each, mask in preferences if mask & bit), apart + points

    def preferred_nodes(self, demand: Demand) -> Iterator[str]:
        """Yields open nodes that meet something, those that meet most first."""
        pod = self._pods[demand.key]
        masks, images, kind = self._preferences(pod), self._image_points(pod), self._kinds[pod.uid]
        known = self._parts.get(kind)
        if known is None or known[0] is not masks or known[1] is not images:
            known = self._parts[kind] = (masks, images, self._split(self._open[kind], masks, images))
        for part in known[2]:
            yield from self._index.each(part)

    @staticmethod
    def _split(
        nodes: int, masks: Sequence[tuple[Preference, int]], images: Sequence[tuple[str, int, int]]
    ) -> Sequence[int]:
        """Returns the nodes in parts that meet the same, those that meet most first, and none that meet nothing."""
        parts = [(nodes, 0)]
        wanted = [((IMAGE_POINTS + 1) * each.weight, mask) for each, mask in masks]
        for more, mask in (*wanted, *((points, mask) for _, points, mask in images)):
            halves = [(part & mask, weight + more) for part, weight in parts]
            halves += [(part & ~mask, weight) for part, weight in parts]
            parts = sorted((one for one in halves if one[0]), key=lambda one: -one[1])[:_PARTS]
        return [part for part, weight in parts if weight]

    def allows(self, demand: Demand, node: str) -> NodeRule | None:
        """Returns the refusal of a node; None if the node takes the pod."""
        return self._refusal(self._filters, demand, node)

    def allows_when_empty(self, demand: Demand, node: str) -> NodeRule | None:
        """Returns the refusal of a node without room, as if its cards had room; None if the node would take the pod."""
        return self._refusal(self._lasting_filters, demand, node)

    def rank(self, demand: Demand, work: StepBudget) -> Iterator[tuple[str, object]]:
        """Yields the nodes with room for whole cards or shares, best first, with their ratings."""
        reserved = self._amounts.reserved if self._amounts is not None else {}
        assert self._ratings is not None, f"no node is rated for {demand.key}"
        return self._ratings.rank(self._pods[demand.key], reserved, demand.nodes, work)

    def end(self) -> None:
        """Has the nodes rated again without what the batch gave away: the batch has changed nothing."""
        if self._ratings is not None:
            for node in self._touched:
                self._ratings.note(node)

    def _refusal(self, filters: Sequence[Filter], demand: Demand, node: str) -> NodeRule | None:
        pod = self._pods[demand.key]
        name = NodeName(node)
        if self._allocations.get(name, pod.uid) is not None:
            return RELEASING
        home = self._required_nodes[pod.uid]
        if home is not None:
            return None if home == node else _OTHER_NODE
        if not self._index.mask_of(name) & self._open[self._kinds[pod.uid]]:
            return self._closed_refusal(pod, name)
        return next((why for rule in filters if (why := rule.refusal(pod, name))), None)

    def _kind(self, pod: PodInfo) -> Hashable:
        special = pod.uid if self._required_nodes[pod.uid] is not None or self._allocations.of(pod.uid) else ""
        filtered = tuple(rule.kind(pod) for rule in self._filters)
        changed = self._changed_nodes.get(pod.uid)
        return (pod.profiles, pod.spread, pod.preferences, self._kinds[pod.uid], filtered, special, changed)

    def reserve(self, demand: Demand, node: str) -> None:
        """Takes in that the batch places the pod on the node."""
        if (others := self._replicas.get(self._pods[demand.key].uid)) is not None:
            others.add(NodeName(node), 1)
        self._touch(NodeName(node))
        for rule in self._filters:
            rule.reserve(self._pods[demand.key], NodeName(node))

    def unreserve(self, demand: Demand, node: str) -> None:
        """Takes in that the batch takes the pod from the node."""
        if (others := self._replicas.get(self._pods[demand.key].uid)) is not None:
            others.add(NodeName(node), -1)
        self._touch(NodeName(node))
        for rule in self._filters:
            rule.unreserve(self._pods[demand.key], NodeName(node))

    def _touch(self, node: NodeName) -> None:
        if self._ratings is not None and self._ratings.has_devices(node):
            self._touched.add(node)
            self._ratings.note(node)

    def _closed_refusal(self, pod: PodInfo, node: NodeName) -> NodeRule:
        key = (self._kinds[pod.uid], node)
        if key not in self._closed:
            facts = self._nodes.get(node)
            why = _GONE if facts is None else first_closed_reason(pod.constraints, facts) or MISMATCH
            self._closed[key] = why
        return self._closed[key]


_OTHER_NODE = NodeRule(RuleKind.PINNED_ELSEWHERE)
_GONE = NodeRule(RuleKind.GONE)
RELEASING = NodeRule(RuleKind.RELEASING)
