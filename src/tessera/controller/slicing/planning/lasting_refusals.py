"""Tells which waiting pods the rules of all nodes refuse, whatever ends on their cards.

Such rules are about other pods, volumes and ports; a node that is too small for the pod counts too. What pods hold now
of cards, CPU and memory does not.
"""

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from tessera.api.names import NodeName
from tessera.controller.filters.resources import Filter, FreeAmounts, shortages
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.slicing.planning.planner import depends_on_pods_or_volumes
from tessera.controller.slicing.planning.small_nodes import SmallNodes
from tessera.controller.slicing.state.slicer_state import SlicerState
from tessera.placement.demand import NoNode
from tessera.placement.step_budget import StepBudget

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


class LastingRefusals:
    """Asks the nodes, for one decision.

    Args:
        state: the slicer's state.
        filters: the rules about pods on nodes.
        work: the budget, a step for each node that is asked; once it is spent, no pod is taken for refused.
    """

    def __init__(self, state: SlicerState, filters: Sequence[Filter], work: StepBudget) -> None:
        self._state = state
        self._all_filters = filters
        self._filters = [each for each in filters if not each.freed_with_cards and not isinstance(each, FreeAmounts)]
        self._work = work
        #: By profiles, the nodes whose cards have them.
        self._makers: dict[tuple[str, ...], int] = {}
        #: Answers for pods that all nodes treat in the same way.
        self._known: dict[Hashable, LastingRefusal | None] = {}

    def find(self, pod: PodInfo) -> LastingRefusal | None:
        """Returns the refusal if every node that is open to the pod refuses it; None if one does not."""
        if self._work.is_spent:
            return None
        kinds = tuple(rule.kind(pod) for rule in self._filters)
        key = (pod.profiles, pod.constraints, tuple(sorted(pod.amounts.items())), kinds)
        if key not in self._known:
            self._known[key] = self._ask(pod)
        return self._known[key]

    def _ask(self, pod: PodInfo) -> LastingRefusal | None:
        index = self._state.cluster.index
        counts: Counter[str] = Counter()
        for node in index.each(index.open_to(pod.constraints) & self._makers_of(pod.profiles)):
            self._work.spend(1)
            why = self._refusal(pod, node)
            if not why or self._work.is_spent:
                return None
            counts[why] += 1
        if not counts:
            return None
        reason = SmallNodes(self._state).complete(pod, NoNode(tuple(counts.most_common())))
        assert isinstance(reason, NoNode)
        return LastingRefusal(reason, depends_on_pods_or_volumes(pod, self._all_filters))

    def _refusal(self, pod: PodInfo, node: NodeName) -> str:
        small = next(shortages(pod.amounts, {}, self._state.cluster.nodes[node]), "")
        return small or next((why for rule in self._filters if (why := rule.refusal(pod, node))), "")

    def _makers_of(self, profiles: tuple[str, ...]) -> int:
        if profiles not in self._makers:
            self._work.spend(len(self._state.profiles_by_node) // _LOOKUPS_A_STEP)
            mask = 0
            for name, made in self._state.profiles_by_node.items():
                if made.issuperset(profiles):
                    mask |= self._state.cluster.index.mask_of(name)
            self._makers[profiles] = mask
        return self._makers[profiles]
