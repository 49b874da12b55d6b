"""Changes after which a pod without a place can run: of rules of a node, of other pods, or of its request.

Each named change is sufficient: after it, the pod gets its place. For one node, this is *every* rule that refuses the
pod and, if its cards have no room, the owners of the slices that must end. The node with the fewest changes comes
first. Pods that end by themselves are named before pods of services, which run without end; slices with as much memory
before smaller ones.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from types import MappingProxyType

from tessera.api.names import NodeName, profile_of, resource_of
from tessera.controller.objects.pod_info import CLAIMS, PodInfo
from tessera.controller.slicing.batch_placement import Placed
from tessera.controller.slicing.slicer import Slicer
from tessera.controller.slicing.state.allocation import FOREIGN
from tessera.explain.offered_resources import remedy_for_rules
from tessera.explain.snapshot import ClusterView
from tessera.placement.cards import OwnedPlacement
from tessera.placement.demand import complete
from tessera.placement.explain import RefusalExplainer, blocker_of
from tessera.placement.node_fit import fit_in_parts
from tessera.reasons.node_rules import NodeRule
from tessera.reasons.reason import Blocker
from tessera.reasons.words import NO_ENDS_STEP
from tessera.text import list_names

#: Alternative profiles, and nodes with different changes, that one explanation lists.
_ALTERNATIVES = 3
_MOST_NODES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeObstacles:
    """The obstacles between a pod and one node whose cards could make its slices.

    Attributes:
        node: the node's name.
        rules: rules that refuse the pod there (:meth:`tessera.controller.slicing.planner.Planner.objections`).
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
    fits = {name: complete(fit_in_parts(nodes[name], pod.profiles, spread=pod.spread)) for name in able}
    found = [NodeObstacles(node=name, rules=rules, has_room=fits[name] is not None) for name, rules in able.items()]
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
        if len(shown) == _MOST_NODES:
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


def room_if_ended(
    view: ClusterView, slices: tuple[Blocker, ...], lasting: Mapping[str, PodInfo] = MappingProxyType({})
) -> str:
    """Names the holders of slices, all on one node, whose end makes room.

    Args:
        view: the cluster as it was read.
        slices: the slices.
        lasting: those of the holders that run without end, by ``namespace/name``.
    """
    pods = dict.fromkeys(one.pod for one in slices)
    parts = [_holder(view, pod, [one for one in slices if one.pod == pod]) for pod in pods]
    one = len(parts) == 1
    when = f"as soon as {'this ends' if one else f'these {len(parts)} end'}"
    where = f" or removed where {'it is' if len(lasting) == 1 else 'they are'} defined"
    scale = f"scaled down{'' if all(each.maker for each in lasting.values()) else where}"
    if len(lasting) == len(parts):
        these, run = ("this is", "it runs") if one else (f"these {len(parts)} are", "they run")
        when = f"once {these} {scale}, since {run} without end"
    elif lasting:
        run = "runs" if len(lasting) == 1 else "run"
        when += f" ({list_names(sorted(lasting))} {run} without end until {scale})"
    return f"there is room {when}, on node {slices[0].node}: " + " and ".join(parts)


def room_by_ends(view: ClusterView, slicer: Slicer, pod: PodInfo, frees: tuple[Blocker, ...]) -> str:
    """Names pods whose end makes room: such that end by themselves, where there are some."""
    holders = [_holder_of(slicer, one.node, one.pod) for one in frees]
    lasting = {each.key: each for each in holders if each is not None and _runs_without_end(each)}
    if not lasting:
        return room_if_ended(view, frees)
    ends = view.for_kind(pod, "ends", lambda: _ends_that_come(slicer, pod))
    if ends:
        return room_if_ended(view, ends)
    searched = len(pod.profiles) == 1  # of several slices it is not known if others are in the way
    if searched and pod.owner and any(each.owner == pod.owner for each in lasting.values()):
        own = f"others of its own {pod.maker or 'controller'} are"
        return f"no pod that ends by itself is in its way, but {own}: add a node, or do with fewer"
    return room_if_ended(view, frees, lasting)


def _holder_of(slicer: Slicer, node: str, key: str) -> PodInfo | None:
    """The pod with slices on a node; None if it is not known."""
    found = next((each for each in slicer.state.allocations.on(NodeName(node)) if each.owner == key), None)
    return slicer.state.cluster.pods.get(found.uid) if found is not None else None


def _runs_without_end(pod: PodInfo) -> bool:
    """True for a pod that starts again whenever it ends: of a service, a DaemonSet, another controller, or static."""
    return bool(pod.owner) and pod.lasts and not pod.maker.startswith("Job/")


def _ends_that_come(slicer: Slicer, pod: PodInfo) -> tuple[Blocker, ...]:
    """The fewest slices in the way of one slice whose pods all end by themselves; empty if there are none."""
    if len(pod.profiles) != 1:
        return ()
    state = slicer.state
    best: list[OwnedPlacement] = []
    for name in (name for name, rules in slicer.planner.objections(pod).items() if not rules):
        holders = {each.owner: state.cluster.pods.get(each.uid) for each in state.allocations.on(name)}
        ending = {owner for owner, each in holders.items() if each is not None and not _runs_without_end(each)}
        for card in state.inventory.fleet.cards(name):
            row = card.geometry.find(pod.profiles[0])
            held = list(zip(card.allocations.values(), card.claims.values(), strict=True))
            for start in row.starts if row is not None else ():
                claim = card.geometry.claim(row, start) if row is not None else 0
                ends = [one for one, bits in held if bits & claim]
                comes = not claim & card.kept_bits and all(one.owner in ending for one in ends)
                if comes and ends and (not best or len(ends) < len(best)):
                    best = ends
    return tuple(map(blocker_of, best))


def _holder(view: ClusterView, pod: str, held: list[Blocker]) -> str:
    where = view.positions((one.profile, one.gpu, one.start, one.size) for one in held)
    if pod == FOREIGN:
        return f"{FOREIGN} ({where}): nvidia-smi mig -dci, -dgi on that node, if no program needs it"
    return f"pod {pod} ({where}{view.progress(pod)})"


def room_for_others(slicer: Slicer, pod: PodInfo) -> Iterator[str]:
    """Names other profiles that would get a place at once, after all pods that wait now got theirs.

    Those with at least as much memory come first; beside them, of the smaller ones only the largest.
    """
    if len(pod.profiles) != 1 or slicer.state.cluster.required_node(pod) is not None:
        return
    memory, enough = _profiles_with_enough(slicer, pod.profiles[0])
    found = list(islice((name for name in enough if _is_placed_with(slicer, pod, name)), _ALTERNATIVES))
    if found:
        yield f"a slice with {memory} GB or more has room now: {_names(pod, found)}"
    smaller = (name for name in _smaller_profiles(slicer, pod.profiles[0]) if name not in enough)
    placed = (name for name in smaller if _is_placed_with(slicer, pod, name))
    fitting = list(islice(placed, 1 if found else _ALTERNATIVES))
    if fitting:
        yield f"a smaller slice has room now: {_names(pod, fitting)}"


def _names(pod: PodInfo, profiles: Iterable[str]) -> str:
    return ", ".join(name if pod.kind is CLAIMS else resource_of(name) for name in profiles)


def _profiles_with_enough(slicer: Slicer, wanted: str) -> tuple[int, list[str]]:
    """The memory of the wanted profile, GB, and the others that have it, the closest first."""
    tables = [table.geometry for table in slicer.state.inventory.fleet.tables]
    own = [row for each in tables if (row := each.find(wanted)) is not None]
    memory, compute = max(((row.memory_gb, row.compute_slices) for row in own), default=(0, 0))
    names = {row.name for row in own}
    rows = {row.name: row for each in tables for row in each.profiles if "+" not in row.name and row.name not in names}
    has_engines = any("+" in name for name in names)  # such as JPEG's, which no other slice has
    enough = [row for row in rows.values() if memory and row.memory_gb >= memory and not has_engines]
    enough.sort(key=lambda row: (row.memory_gb, row.compute_slices < compute, abs(row.compute_slices - compute)))
    return memory, [row.name for row in enough]


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
