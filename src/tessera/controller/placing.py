"""One batch of waiting pods through placement, under the scheduler's rules.

Turns pods into demands, answers placement's question which node takes whom, and turns what placement chose into
promises. Nothing is changed here but a scratch count of what the batch would use of each node.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

from tessera.api.instaslice import Slice
from tessera.api.names import NodeName, device_id
from tessera.clock import parse_rfc3339
from tessera.controller.constraints import Constraints
from tessera.controller.eligibility import MISMATCH, closure
from tessera.controller.facts import NodeFacts, PodFacts
from tessera.controller.judges import Judge
from tessera.controller.ledger import Ledger
from tessera.controller.node_index import NodeIndex
from tessera.placement.demand import Demand
from tessera.placement.fleet import CardPlacement, Fleet
from tessera.placement.plan import Plan, plan
from tessera.placement.reasons import Reason, Refusal


@dataclass(frozen=True, slots=True)
class Placed:
    """A pod and the slices chosen for it."""

    pod: PodFacts
    node: NodeName
    slices: tuple[Slice, ...]


@dataclass(frozen=True, slots=True)
class Unplaced:
    """A pod and why it must wait."""

    pod: PodFacts
    reason: Reason


def place(
    pods: Sequence[PodFacts],
    fleet: Fleet,
    nodes: Mapping[NodeName, NodeFacts],
    index: NodeIndex,
    judges: Sequence[Judge],
    *,
    ledger: Ledger,
    home_of: Callable[[PodFacts], NodeName | None],
) -> Sequence[Placed | Unplaced]:
    """Plans all of them together.

    Args:
        pods: what waits, in any order; higher priority goes first, then the older, then by name.
        fleet: the cards; unchanged.
        nodes: the nodes.
        index: the same nodes, for constraints.
        judges: the other rules, made for this batch.
        ledger: existing promises; a node that still takes back slices of a pod is no place for it.
        home_of: the node that a pod must run on because it is ungated already.
    """
    ordered = sorted(pods, key=lambda pod: (-pod.priority, pod.created, pod.key))
    rules = _Rules({pod.key: pod for pod in ordered}, nodes, index, judges, ledger=ledger, home_of=home_of)
    asked, alike = _enough(ordered, rules, fleet)
    demands = [Demand(pod.key, pod.profiles, pod.priority, _arrival(pod)) for pod in asked]
    decided = plan(fleet, demands, rules.allows, on_take=rules.take, on_give_back=rules.give_back)
    placed: list[Placed | Unplaced] = []
    for pod in ordered:
        slices = decided.assignments.get(pod.key)
        if slices is not None:
            placed.append(Placed(pod, NodeName(slices[0].node), _slices(slices)))
        else:
            placed.append(Unplaced(pod, _reason(decided, alike.get(pod.key, (pod,)))))
    return placed


def _reason(decided: Plan, alike: Sequence[PodFacts]) -> Reason:
    """Why the first of these that found no place found none."""
    return next(decided.refusals[pod.key] for pod in alike if pod.key in decided.refusals)


def _enough(
    ordered: Sequence[PodFacts], rules: "_Rules", fleet: Fleet
) -> tuple[list[PodFacts], dict[str, Sequence[PodFacts]]]:
    """Leaves out pods that cannot be placed because too many of their kind stand before them.

    Of pods that differ in nothing but their name, no more fit than the free slots allow. Those beyond one more are not
    planned: they share the reason of one that was. So what a freed slot costs does not grow with what waits.

    Returns:
        Pods to plan, and for each one left out those before it, of which one at least will find no place.
    """
    free = sum(node.free for node in fleet.fullest_nodes())
    most: dict[tuple[str, ...], int] = {}
    kinds: dict[Hashable, list[PodFacts]] = {}
    asked: list[PodFacts] = []
    alike: dict[str, Sequence[PodFacts]] = {}
    for pod in ordered:
        if pod.profiles not in most:
            most[pod.profiles] = free // _slots(fleet, pod.profiles) + 1
        before = kinds.setdefault(rules.kind(pod), [])
        if len(before) < most[pod.profiles]:
            before.append(pod)
            asked.append(pod)
        else:
            alike[pod.key] = before
    return asked, alike


def _slots(fleet: Fleet, profiles: Sequence[str]) -> int:
    """The fewest memory slots that these slices take together on any cards of the fleet; 1 each where unknown."""
    sizes = ([table.size_of(name) for table in fleet.tables if (name := table.name_of(each))] for each in profiles)
    return sum(min(found, default=1) for found in sizes)


def _arrival(pod: PodFacts) -> float:
    try:
        return parse_rfc3339(pod.created)
    except ValueError:
        return 0.0


def _slices(placements: Sequence[CardPlacement]) -> tuple[Slice, ...]:
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


class _Rules:
    """Which node takes whom, while a batch is being planned."""

    def __init__(
        self,
        pods: Mapping[str, PodFacts],
        nodes: Mapping[NodeName, NodeFacts],
        index: NodeIndex,
        judges: Sequence[Judge],
        *,
        ledger: Ledger,
        home_of: Callable[[PodFacts], NodeName | None],
    ) -> None:
        self._pods = pods
        self._nodes = nodes
        self._index = index
        self._judges = judges
        self._ledger = ledger
        self._homes = {pod.uid: home_of(pod) for pod in pods.values()}
        self._closed: dict[tuple[int, str], Refusal] = {}
        shared: dict[Constraints, int] = {}
        self._kinds = {pod.uid: shared.setdefault(pod.constraints, len(shared)) for pod in pods.values()}
        self._open: dict[int, int] = {}

    def allows(self, demand: Demand, node: str) -> Refusal | None:
        """Placement's question."""
        pod = self._pods[demand.key]
        home = self._homes[pod.uid]
        if home is not None:
            return None if home == node else _NOT_HOME
        name = NodeName(node)
        if self._ledger.get(name, pod.uid) is not None:
            return _LEAVING
        if not self._index.bit(name) & self._open_to(pod):
            return self._closure(pod, name)
        why = next((why for judge in self._judges if (why := judge.refusal(pod, name))), "")
        return Refusal(why) if why else None

    def kind(self, pod: PodFacts) -> Hashable:
        """Equal for pods that every node treats alike."""
        special = pod.uid if self._homes[pod.uid] is not None or self._ledger.of(pod.uid) else ""
        return (pod.profiles, self._kinds[pod.uid], tuple(sorted(pod.amounts.items())), special)

    def take(self, demand: Demand, node: str) -> None:
        """The batch gives the pod a place there."""
        for judge in self._judges:
            judge.take(self._pods[demand.key], NodeName(node))

    def give_back(self, demand: Demand, node: str) -> None:
        """It takes that back."""
        for judge in self._judges:
            judge.give_back(self._pods[demand.key], NodeName(node))

    def _open_to(self, pod: PodFacts) -> int:
        kind = self._kinds[pod.uid]
        if kind not in self._open:
            self._open[kind] = self._index.open_to(pod.constraints)
        return self._open[kind]

    def _closure(self, pod: PodFacts, node: NodeName) -> Refusal:
        key = (self._kinds[pod.uid], node)
        if key not in self._closed:
            facts = self._nodes.get(node)
            why = "node(s) were gone" if facts is None else closure(pod.constraints, facts) or MISMATCH
            self._closed[key] = Refusal(why)
        return self._closed[key]


_NOT_HOME = Refusal("node(s) are not the one that the pod is pinned to")
_LEAVING = Refusal("node(s) still take back the pod's former slices")
