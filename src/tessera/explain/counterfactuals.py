"""Names changes after which a waiting pod can run: rules of a node, other pods, or the pod's request.

Each named change is sufficient: after it, the pod gets its place. For one node, this is *every* rule that refuses the
pod and, if its cards have no room, the owners of the slices that must end. The node with the fewest changes comes
first.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tessera.api.names import NodeName, profile_of, resource_of
from tessera.controller.objects.pod_info import CLAIMS, PodInfo
from tessera.controller.slicing.planning.batch_placement import Placed
from tessera.controller.slicing.slicer import Slicer
from tessera.controller.slicing.state.fleet_inventory import FOREIGN
from tessera.explain.node_refusals import remedy_for_rules
from tessera.explain.snapshot import ClusterView
from tessera.placement.explain import RefusalExplainer
from tessera.placement.node_fit import fit_on_node
from tessera.reasons.node_rules import NodeRule
from tessera.reasons.reason import Blocker
from tessera.reasons.words import NO_ENDS_STEP

#: Alternative profiles, and nodes with different changes, that one explanation lists.
_ALTERNATIVES = 3
_NODES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeObstacles:
    """The obstacles between a pod and one node whose cards could make its slices.

    Attributes:
        node: the node's name.
        rules: rules that refuse the pod there (:meth:`tessera.controller.slicing.planning.planner.Planner.objections`).
        has_room: its cards have room without any change.
    """

    node: str
    rules: tuple[NodeRule, ...]
    has_room: bool

    @property
    def count(self) -> int:
        """The number of obstacles."""
        return len(self.rules) + (not self.has_room)


def obstacles_by_node(slicer: Slicer, pod: PodInfo) -> list[NodeObstacles]:
    """Every node that could make the slices, the one with the fewest obstacles first; of equals, fewest rules first.

    Args:
        slicer: the controller's state.
        pod: the pod.
    """
    fleet, objections = slicer.state.inventory.fleet, slicer.planner.objections(pod)
    able = {name: rules for name, rules in objections.items() if not missing_profiles(slicer, pod, name)}
    nodes = {node.name: node for node in fleet.emptiest_nodes()}
    found = [
        NodeObstacles(node=name, rules=rules, has_room=fit_on_node(nodes[name], pod.profiles) is not None)
        for name, rules in able.items()
    ]
    return sorted(found, key=lambda each: (each.count, len(each.rules), each.node))


def missing_profiles(slicer: Slicer, pod: PodInfo, node: NodeName | str) -> list[str]:
    """The pod's profiles that no card of a node has."""
    tables = {card.table for card in slicer.state.inventory.fleet.cards(node)}
    return [each for each in dict.fromkeys(pod.profiles) if not any(table.name_of(each) for table in tables)]


def allocations_to_end(slicer: Slicer, pod: PodInfo, obstacles: NodeObstacles) -> tuple[Blocker, ...]:
    """Slices on one node whose end makes room there.

    Returns:
        The slices; empty if the node has room, or if more than a few would have to end.
    """
    if obstacles.has_room:
        return ()
    explainer = RefusalExplainer(slicer.state.inventory.fleet, lambda _demand, _node: None, {})
    return explainer.no_room(pod.profiles, (obstacles.node,)).frees


# The changes in words


def changes_by_node(view: ClusterView, slicer: Slicer, pod: PodInfo) -> Iterator[str]:
    """One line for each node that needs the fewest changes; nodes that need the same changes share a line."""
    shown: set[tuple[tuple[NodeRule, ...], bool]] = set()
    for each in obstacles_by_node(slicer, pod):
        if (each.rules, each.has_room) not in shown:
            shown.add((each.rules, each.has_room))
            yield _changes(view, slicer, pod, each)
        if len(shown) == _NODES:
            return


def _changes(view: ClusterView, slicer: Slicer, pod: PodInfo, obstacles: NodeObstacles) -> str:
    steps = [remedy_for_rules(obstacles.rules, obstacles.node, alone=obstacles.has_room)] if obstacles.rules else []
    if not obstacles.has_room:
        ends = allocations_to_end(slicer, pod, obstacles)
        steps.append(room_if_ended(view, ends) if ends else NO_ENDS_STEP)
    return "; and ".join(steps)


def room_elsewhere(slicer: Slicer, pod: PodInfo) -> Iterator[str]:
    """Names a node that has room but refuses the pod, and the steps that lift its rules."""
    found = next((each for each in obstacles_by_node(slicer, pod) if each.has_room and each.rules), None)
    if found is not None and slicer.state.cluster.required_node(pod) is None:
        yield f"or use node {found.node}, which has room: {remedy_for_rules(found.rules, found.node)}"


def room_if_ended(view: ClusterView, slices: tuple[Blocker, ...]) -> str:
    """Names the holders of slices, all on one node, whose end makes room."""
    pods = dict.fromkeys(one.pod for one in slices)
    parts = [_holder(view, pod, [one for one in slices if one.pod == pod]) for pod in pods]
    verb = "this ends" if len(parts) == 1 else f"these {len(parts)} end"
    return f"there is room as soon as {verb}, on node {slices[0].node}: " + " and ".join(parts)


def _holder(view: ClusterView, pod: str, held: list[Blocker]) -> str:
    where = view.positions((one.profile, one.gpu, one.start, one.size) for one in held)
    if pod == FOREIGN:
        return f"{FOREIGN} ({where}): nvidia-smi mig -dci, -dgi on that node, if no program needs it"
    return f"pod {pod} ({where}{view.progress(pod)})"


def room_for_smaller(slicer: Slicer, pod: PodInfo) -> Iterator[str]:
    """Names smaller profiles that would get a place at once, after all pods that wait now got theirs."""
    if len(pod.profiles) != 1 or slicer.state.cluster.required_node(pod) is not None:
        return
    fitting = [name for name in _smaller_profiles(slicer, pod.profiles[0]) if _is_placed_with(slicer, pod, name)]
    if fitting:
        names = ", ".join(name if pod.kind is CLAIMS else resource_of(name) for name in fitting[:_ALTERNATIVES])
        yield f"a smaller slice has room now: {names}"


def _smaller_profiles(slicer: Slicer, wanted: str) -> list[str]:
    """Profiles that are smaller than the wanted one on some card that has it, largest first."""
    sizes: dict[str, tuple[int, int]] = {}
    for table in slicer.state.inventory.fleet.tables:
        own = table.geometry.find(wanted)
        for row in table.geometry.profiles if own is not None else ():
            if own is not None and row.size <= own.size and row.compute_slices < own.compute_slices:
                sizes[row.name] = max(sizes.get(row.name, (0, 0)), (row.size, row.compute_slices))
    return sorted(sizes, key=lambda name: (*(-each for each in sizes[name]), len(name), name))


def _is_placed_with(slicer: Slicer, pod: PodInfo, profile: str) -> bool:
    amounts = {name: amount for name, amount in pod.amounts.items() if not profile_of(name)}
    amounts[resource_of(profile)] = 1
    other = replace(pod, profiles=(profile.replace("+", "."),), amounts=amounts)
    return isinstance(slicer.planner.plan_alone([other])[0], Placed)
