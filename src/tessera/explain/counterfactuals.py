"""Lists, node by node, the rules and the pods that prevent a pod from running there.

The reason that people read is the one whose removal lets the pod run. For a node that is *all* its rules and, where
its cards have no room, the owners of slices that have to end. The way with the least to remove comes first.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tessera.api.names import NodeName
from tessera.controller.objects.pod_info import PodFacts
from tessera.controller.slicing.slicer import Slicer
from tessera.placement.cards import Allocation
from tessera.placement.explain import Explainer
from tessera.placement.node_fit import fit_on_node


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """The obstacles between a pod and one node whose cards could make its slices.

    Attributes:
        node: which.
        rules: that refuse the pod there (:mod:`tessera.controller.slicing.objections`).
        room: its cards have room as they are.
    """

    node: str
    rules: tuple[str, ...]
    room: bool

    @property
    def length(self) -> int:
        """The number of obstacles."""
        return len(self.rules) + (not self.room)


def ways(slicer: Slicer, pod: PodFacts) -> list[Way]:
    """All ways, shortest first; those that only need room before those that only need a rule changed.

    Args:
        slicer: the controller's state.
        pod: the pod.
    """
    fleet, objections = slicer.inventory.fleet, slicer.objections(pod)
    able = {name: rules for name, rules in objections.items() if not missing(slicer, pod, name)}
    nodes = {node.name: node for node in fleet.emptiest_nodes()}
    found = [
        Way(node=name, rules=rules, room=fit_on_node(nodes[name], pod.profiles) is not None)
        for name, rules in able.items()
    ]
    return sorted(found, key=lambda way: (way.length, len(way.rules), way.node))


def missing(slicer: Slicer, pod: PodFacts, node: NodeName | str) -> list[str]:
    """The pod's profiles that no card of a node has."""
    tables = {card.table for card in slicer.inventory.fleet.cards(node)}
    return [each for each in dict.fromkeys(pod.profiles) if not any(table.name_of(each) for table in tables)]


def ends(slicer: Slicer, pod: PodFacts, way: Way) -> Sequence[Allocation]:
    """Allocations on a way's node whose end makes room; empty if there is room, or if more than a few had to end."""
    if way.room:
        return ()
    explainer = Explainer(slicer.inventory.fleet, lambda _demand, _node: None, {})
    return explainer.no_room(pod.profiles, (way.node,)).frees
