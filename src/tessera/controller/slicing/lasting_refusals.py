"""Kinds of waiting pods, and which of them the rules of all nodes refuse, whatever ends on their cards.

Pods of one kind differ only in name and age, so that one refusal answers for all of them. A kind holds all that
planning looks at, but for name and age. Some pods have no kind, because their place depends on more: pods with rules
about other pods, ports, claims, a gang, a deadline, a reservation, nodes that their owner avoids, or slices that a node
still takes back.

Rules of nodes that refuse are about other pods, volumes and ports; a node that is too small for the pod counts too.
What pods hold now of cards, CPU and memory does not.

One decision asks a bounded number of nodes. The answers are kept, and the next decision carries on where this one has
stopped: a node is asked again once room may have grown there, or, for a pod that depends on other pods and volumes,
once these have changed. Each decision gets further, and one that has nothing left to ask is the last. Few kinds of pods
are kept; a pod of another kind that all nodes have refused keeps its refusal, with its counts of nodes, until one of
the nodes that change lets it in.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import msgspec

from tessera.api.names import NodeName, PodUid
from tessera.controller.cluster.filters import Filter, FreeAmounts, shortages
from tessera.controller.objects.pod_constraints import NO_RELATIONS, NodeConstraints
from tessera.controller.objects.pod_info import KindOfRequest, PodInfo
from tessera.controller.slicing.planner import SmallNodes, depends_on_pods_or_volumes
from tessera.controller.slicing.state.slicer_state import SlicerState
from tessera.kube.resources.selectors import union
from tessera.placement.demand import CardSpread, StepBudget
from tessera.reasons.node_rules import NodeRule
from tessera.reasons.reason import NoNode, RuleCount

#: Most kinds of pods of queues with a maximum of which it is kept which nodes refuse them. Some 10 KB each with 5,000
#: nodes; of more, the one that was asked longest ago is asked anew.
REFUSED_KINDS = 256

#: Steps of one decision: one for each node that is asked, and those of the rules about other pods.
_REFUSAL_STEPS = 10_000
#: Nodes that are asked about a pod at least, however much its rules about other pods cost: a pod whose rules cost more
#: than a decision may spend is decided in some decisions, and not in one for each node.
_LEAST_NODES = 1_000
#: Nodes that are asked again about a pod that all have refused though the budget is spent: to plan it would cost more,
#: and its refusal by all would be forgotten.
_FEW_NODES = 4
#: Nodes whose profiles are looked up at the cost of asking one node about one pod.
_LOOKUPS_A_STEP = 32


@dataclass(frozen=True, slots=True)
class LastingRefusal:
    """All nodes that are open to a pod refuse it.

    Attributes:
        reason: their rules.
        dependent: a change of other pods or volumes alone may lift it.
    """

    reason: NoNode
    dependent: bool


@dataclass(slots=True)
class _Refusals:
    """The nodes that refuse a kind of pods.

    Attributes:
        count: changes of room that are taken into account.
        nodes: by rule, the mask of the nodes that refuse by it.
        dependent: other pods or volumes may lift a refusal.
    """

    count: int = -1
    nodes: dict[NodeRule, int] = field(default_factory=dict)
    dependent: bool = False

    @property
    def mask(self) -> int:
        found = 0
        for mask in self.nodes.values():
            found |= mask
        return found

    def drop(self, mask: int) -> None:
        self.nodes = {rule: left for rule, nodes in self.nodes.items() if (left := nodes & ~mask)}


class RefusalMemory:
    """Answers of nodes, kept from one decision to the next.

    Attributes:
        is_behind: True if the present decision has left nodes to the next one.
        work: what the present decision may still spend.
        admitted: kinds that a node lets in, or for which none is open. They are not asked about again until nothing is
            left to ask, or nodes, other pods or volumes have changed: so each decision gets further.
        kinds: by kind of pods, the nodes that refuse it; the last used at the end.
        found: refusals that the present decision has found and not used yet: to find one again may cost more than is
            left.
    """

    def __init__(self) -> None:
        self.is_behind = False
        self.work = StepBudget(_REFUSAL_STEPS)
        self.admitted: set[Hashable] = set()
        self.found: dict[PodUid, LastingRefusal] = {}
        #: Pods of these kinds, as they were: even to find out their kind again may cost much.
        self._admitted_pods: dict[PodUid, PodInfo] = {}
        self.kinds: dict[Hashable, _Refusals] = {}

    def begin(self, *, nodes_changed: bool, dependencies_changed: bool) -> bool:
        """Begins a decision.

        Args:
            nodes_changed: nodes have changed.
            dependencies_changed: pods or volumes have changed on which other pods depend.

        Returns:
            True if pods may be refused by all nodes of which the last decision did not know it.
        """
        self.work = StepBudget(_REFUSAL_STEPS)
        self.found.clear()
        changed = nodes_changed or dependencies_changed
        if changed or not self.is_behind:
            self.admitted.clear()
            self._admitted_pods.clear()
        found, self.is_behind = self.is_behind, False
        if dependencies_changed:
            self.kinds = {kind: each for kind, each in self.kinds.items() if not each.dependent}
        return found or changed

    def is_admitted(self, pod: PodInfo) -> bool:
        """True if the pod was found to be of an admitted kind, and has not changed since."""
        return self._admitted_pods.get(pod.uid) is pod

    def note_admitted(self, pod: PodInfo) -> None:
        """Notes that the pod is of an admitted kind."""
        self._admitted_pods[pod.uid] = pod

    def knows(self, kind: Hashable) -> bool:
        """True if the answers about a kind are kept, so that only nodes that have changed are asked again."""
        return kind in self.kinds

    def of(self, kind: Hashable, state: SlicerState) -> _Refusals:
        """Returns the refusals of a kind that are still valid."""
        found = self.kinds.pop(kind, None) or _Refusals()
        self.kinds[kind] = found
        if len(self.kinds) > REFUSED_KINDS:
            del self.kinds[next(iter(self.kinds))]
        changes, index = state.cluster.capacity_changes, state.cluster.index
        changed = changes.nodes_changed_since(found.count)
        if changed is None:
            found.nodes.clear()
        elif found.nodes:
            found.drop(union(index.mask_of(node) for node in changed))
        found.count = changes.count
        return found


class LastingRefusals:
    """Asks the nodes, for one decision.

    Args:
        state: the slicer's state.
        filters: the rules about pods on nodes.
        work: the budget, a step for each node that is asked; once it is spent, no further pod is taken for refused.
        memory: the answers so far.
    """

    def __init__(self, state: SlicerState, filters: Sequence[Filter], work: StepBudget, memory: RefusalMemory) -> None:
        self._state = state
        self._all_filters = filters
        self._filters = [each for each in filters if not each.freed_with_cards and not isinstance(each, FreeAmounts)]
        self._work = work
        self._memory = memory
        self._small = SmallNodes(state)
        #: By profiles, the nodes whose cards have them.
        self._makers: dict[tuple[str, ...], int] = {}
        #: Answers for pods that all nodes treat in the same way.
        self._known: dict[Hashable, LastingRefusal | None] = {}

    def find(self, pod: PodInfo) -> LastingRefusal | None:
        """Returns the refusal if every node that is open to the pod refuses it; None if one does not."""
        if self._memory.is_admitted(pod):
            return None
        found = self._memory.found.pop(pod.uid, None)
        if found is not None:
            return found
        is_spent = self._work.is_spent
        again, is_exact = (None, False) if is_spent and not self._costs_little_again(pod) else self._again(pod)
        if again is not None and (is_exact or is_spent):
            return again
        if is_spent:
            self._memory.is_behind = True
            return None
        kinds = tuple(rule.kind(pod) for rule in self._filters)
        key = (pod.profiles, pod.constraints, tuple(sorted(pod.amounts.items())), kinds)
        if again is not None and not self._memory.knows(key):
            return again
        if key not in self._known:
            self._known[key] = None if key in self._memory.admitted else self._ask(pod, key)
        if key in self._memory.admitted:
            self._memory.note_admitted(pod)
        return self._known[key]

    def _costs_little_again(self, pod: PodInfo) -> bool:
        """True if few nodes have to be asked again about a pod without rules about other pods and volumes.

        The nodes whose cards have its profiles are known by then: to find them costs a look at all nodes.
        """
        if pod.profiles not in self._makers or self._is_dependent(pod.uid):
            return False
        changed = self._state.pods.nodes_changed_since_refusal(pod.uid)
        return changed is not None and len(changed) <= _FEW_NODES

    def _is_dependent(self, uid: PodUid) -> bool:
        known = self._state.waiting.get(uid)
        return known is not None and known.dependent

    def _again(self, pod: PodInfo) -> tuple[LastingRefusal | None, bool]:
        """Returns the last refusal of a pod if all nodes refused it and those that have changed since do so again.

        The second value is False if its reason may be out of date: another number of nodes is open to the pod now, or
        one of those that changed refuses it by a rule that the reason does not name.
        """
        known = self._state.waiting.get(pod.uid)
        reason = known.reason if known is not None and known.refused_by_all else None
        if not isinstance(reason, NoNode):
            return None, False
        index = self._state.cluster.index
        changed = self._state.pods.nodes_changed_since_refusal(pod.uid)
        able = index.open_to(pod.constraints) & self._makers_of(pod.profiles)
        if changed is None or not able:
            return None, False
        rules = {each.rule for each in reason.counts}
        is_exact = sum(each.nodes for each in reason.counts) == able.bit_count()
        for node in index.each(able & union(index.mask_of(name) for name in changed)):
            self._work.spend(1)
            why = self._refusal(pod, node)
            if not why:
                return None, False
            is_exact &= why in rules
        current = reason if self._work.is_spent else self._complete(pod, reason.counts)
        return LastingRefusal(current, self._is_dependent(pod.uid)), is_exact

    def _ask(self, pod: PodInfo, kind: Hashable) -> LastingRefusal | None:
        index, found = self._state.cluster.index, self._memory.of(kind, self._state)
        able = index.open_to(pod.constraints) & self._makers_of(pod.profiles)
        found.drop(~able)
        found.dependent = depends_on_pods_or_volumes(pod, self._all_filters)
        for number, node in enumerate(index.each(able & ~found.mask)):
            if self._work.is_spent and number >= _LEAST_NODES:
                self._memory.is_behind = True
                return None
            self._work.spend(1)
            why = self._refusal(pod, node)
            if not why:
                self._memory.admitted.add(kind)
                return None
            found.nodes[why] = found.nodes.get(why, 0) | index.mask_of(node)
        if not able:
            self._memory.admitted.add(kind)
            return None
        counts = [RuleCount(rule, mask.bit_count()) for rule, mask in found.nodes.items()]
        counts.sort(key=lambda each: -each.nodes)
        return LastingRefusal(self._complete(pod, tuple(counts)), found.dependent)

    def _complete(self, pod: PodInfo, counts: tuple[RuleCount, ...]) -> NoNode:
        before = self._small.cost
        reason = self._small.complete(pod, NoNode(counts))
        self._work.spend((self._small.cost - before) // _LOOKUPS_A_STEP)
        assert isinstance(reason, NoNode)
        return reason

    def _refusal(self, pod: PodInfo, node: NodeName) -> NodeRule | None:
        small = next(shortages(pod.amounts, {}, self._state.cluster.nodes[node]), None)
        return small or next((why for rule in self._filters if (why := rule.refusal(pod, node))), None)

    def _makers_of(self, profiles: tuple[str, ...]) -> int:
        if profiles not in self._makers:
            self._work.spend(len(self._state.profiles_by_node) // _LOOKUPS_A_STEP)
            mask = 0
            for name, made in self._state.profiles_by_node.items():
                if made.issuperset(profiles):
                    mask |= self._state.cluster.index.mask_of(name)
            self._makers[profiles] = mask
        return self._makers[profiles]


class PodKind(msgspec.Struct, frozen=True):
    """The facts about a waiting pod on which its place depends.

    Attributes:
        priority: its priority.
        queue: the queue that it counts for.
        kind: the kind of its request.
        spread: how its slices lie on the cards.
        profiles: its slices, or the resources of its cards and shares.
        amounts: what else it requests, sorted.
        constraints: its constraints on nodes.
    """

    priority: int
    queue: str
    kind: KindOfRequest
    spread: CardSpread
    profiles: tuple[str, ...]
    amounts: tuple[tuple[str, int], ...]
    constraints: NodeConstraints


def kind_of(state: SlicerState, pod: PodInfo) -> PodKind | None:
    """Returns the kind of a waiting pod; None if planning may treat it in another way than its like."""
    if not pod.ready_to_place or pod.gang is not None or pod.deadline is not None:
        return None
    known = state.waiting.get(pod.uid)
    if pod.relations != NO_RELATIONS or pod.ports or pod.claims or (known is not None and known.dependent):
        return None
    if pod.uid in state.reservations or state.allocations.of(pod.uid) or state.avoidance.nodes_of(pod.avoids_as):
        return None
    return PodKind(
        priority=pod.priority,
        queue=state.cluster.queue_of(pod),
        kind=pod.kind,
        spread=pod.spread,
        profiles=pod.profiles,
        amounts=tuple(sorted(pod.amounts.items())),
        constraints=pod.constraints,
    )
