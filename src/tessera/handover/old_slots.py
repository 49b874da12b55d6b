"""Which old pods of an update may leave their slots to a new one. Pure: it reads the slicer's state.

The rules are those of :mod:`tessera.handover.hand_over`: no old pod ends for a new one that could not use its slots.
"""

from collections.abc import Iterator
from itertools import islice

from tessera.api.names import PodUid
from tessera.controller.filters.resources import first_shortage
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.objects.resource_amounts import add_amounts
from tessera.controller.slicing.state.allocation import Allocation
from tessera.controller.slicing.state.queue_ledger import NO_SLOTS
from tessera.controller.slicing.state.reservation import Reservation
from tessera.controller.slicing.state.reservation_rules import holding_of, overlap
from tessera.controller.slicing.state.slicer_state import SlicerState
from tessera.handover.owner_pods import place_within, reserve_inherited
from tessera.handover.updates import Update

#: Most old pods of one update that are looked for, and named; the first one ends.
NAMED_PODS = 8


def find_old_pods(state: SlicerState, update: Update, pod: PodInfo) -> list[PodInfo]:
    """Returns the old pods whose slots would do for a new one, the best first, as many as are named."""
    ordered = sorted(update.old, key=lambda each: (bool(each.ready_since), each.profiles != pod.profiles, each.created))
    return list(islice((each for each in ordered if _may_leave(state, each, pod)), NAMED_PODS))


def _may_leave(state: SlicerState, old: PodInfo, pod: PodInfo) -> bool:
    """True if a new pod may get the slots of an old one, and can use them."""
    one = state.allocations.current_of(old.uid)
    if one is None or place_within(state, one, pod) is None:
        return False
    if not keeps_maximum(state, old, pod) or not _has_amounts(state, one, pod):
        return False
    return not any(_takes_precedence(each, old, pod) for each in reservations_on(state, old))


def ends(state: SlicerState, uid: PodUid) -> bool:
    """True if a pod is gone, or was asked to end."""
    pod = state.cluster.pods.get(uid)
    return pod is None or pod.terminating


def keeps_maximum(state: SlicerState, old: PodInfo, pod: PodInfo) -> bool:
    """True if the queue of a new pod may hold it in place of an old one, which may be of another queue."""
    queue = state.cluster.queue_of(pod)
    replaces = state.cluster.queue_of(old) == queue
    more = NO_SLOTS if replaces else holding_of(state, pod)
    return not state.ledger.is_above_maximum(queue, more)


def _has_amounts(state: SlicerState, one: Allocation, pod: PodInfo) -> bool:
    """True if a node has what else a new pod requests once the old one has left it."""
    node = state.cluster.nodes.get(one.node)
    used = dict(state.usage.used.get(one.node, {}))
    add_amounts(used, one.amounts, sign=-1)
    return node is not None and first_shortage(pod.amounts, used, node) is None


def reservations_on(state: SlicerState, old: PodInfo) -> Iterator[Reservation]:
    """Returns the reservations of slots that a pod holds."""
    one = state.allocations.current_of(old.uid)
    made = reserve_inherited(state, old, one.node, one.slices) if one is not None else None
    return (each for each in state.reservations.on(made.node) if overlap(each, made)) if made is not None else iter(())


def _takes_precedence(one: Reservation, old: PodInfo, pod: PodInfo) -> bool:
    """True if a reservation of others on an old pod's slots stays: of a preemption, a move, or another update."""
    if one.uid == pod.uid:
        return False
    return one.is_inherited or one.priority > old.priority or old.movable
