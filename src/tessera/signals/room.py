"""How many further replicas of a service fit now: copies of one of its pods are planned as if they had just come.

The copies are planned by the planner that places pods, together and beside the reservations of others, so the number
is what a scaler would get at this moment: cards, other resources of nodes, constraints, rules about other pods and the
maximum of the queue count. It promises nothing: whoever comes first gets the room.
"""

from collections.abc import Sequence
from dataclasses import replace

from tessera.api.names import GATE, PodUid
from tessera.controller.objects.pod_info import SLICES, PodInfo
from tessera.controller.slicing.cycle.order import FairOrder
from tessera.controller.slicing.evictions.move_finder import unpinned
from tessera.controller.slicing.planning.batch_placement import Placed
from tessera.controller.slicing.planning.pod_kinds import PodKind, kind_of
from tessera.controller.slicing.slicer import Slicer
from tessera.placement.step_budget import StepBudget
from tessera.signals.page import ROOM_COUNTED

#: Most steps of planning for one service, a step being one node asked about one pod.
SERVICE_STEPS = 10_000


def has_room_number(pod: PodInfo) -> bool:
    """True if the room for more pods like this one can be counted: it asks for slices, and starts by itself."""
    return bool(pod.profiles) and pod.kind is SLICES and pod.gang is None and not pod.fault


def count_room(slicer: Slicer, pod: PodInfo) -> tuple[int, int]:
    """Returns how many further pods like this one fit now, :data:`ROOM_COUNTED` at most, and the steps that it took.

    Args:
        slicer: the state machine, caught up; nothing in it changes.
        pod: a pod of the service, waiting or not.
    """
    copies = [_copy(pod, number) for number in range(ROOM_COUNTED)]
    allowed, _ = FairOrder(slicer.state).first(copies, ROOM_COUNTED)
    work = StepBudget(SERVICE_STEPS)
    found = slicer.planner.plan_alone(allowed, work) if allowed else ()
    return sum(isinstance(each, Placed) for each in found), SERVICE_STEPS - work.remaining


def room_kind(slicer: Slicer, pod: PodInfo) -> PodKind | None:
    """What pods with the same room have in common; None if another pod's room says nothing of this one's."""
    return kind_of(slicer.state, _copy(pod, 0))


def _copy(pod: PodInfo, number: int) -> PodInfo:
    """A pod as its owner would make one more: it has no place, and nothing has happened to it.

    A host that the author of a placed pod names cannot be told from Tessera's pin, and does not count.
    """
    return replace(
        pod if pod.is_held else unpinned(pod),
        uid=PodUid(f"room-{number}"),
        name=f"room-{number}",
        gates=pod.gates if pod.is_held else (GATE,),
        started=0.0,
        unstarted=False,
        finished=False,
        terminating=False,
        version=0,
    )


def newest(pods: Sequence[PodInfo]) -> PodInfo:
    """The pod that the next ones of its service are like: the one that was created last."""
    return max(pods, key=lambda pod: (pod.created, pod.key))
