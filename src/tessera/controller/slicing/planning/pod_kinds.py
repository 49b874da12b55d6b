"""Kinds of waiting pods: pods of one kind differ only in name and age, so that one refusal answers for all of them.

A kind holds all that planning looks at, but for name and age. Some pods have no kind, because their place depends on
more: pods with rules about other pods, ports, claims, a gang, a deadline, a reservation, nodes that their owner avoids,
or slices that a node still takes back.
"""

import msgspec

from tessera.controller.objects.pod_constraints import NO_RELATIONS, NodeConstraints
from tessera.controller.objects.pod_info import KindOfRequest, PodInfo
from tessera.controller.slicing.state.slicer_state import SlicerState
from tessera.placement.demand import CardSpread


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
