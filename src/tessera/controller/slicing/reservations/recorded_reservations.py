"""Takes over the reservations that an earlier process recorded, so that a waiting pod keeps its place."""

from collections.abc import Iterable

from tessera.api.instaslice import Instaslice
from tessera.api.names import NodeName, PodUid
from tessera.controller.slicing.reservations.reservation_record import (
    RESERVATIONS_ANNOTATION,
    RecordedReservation,
    read_reservations,
)
from tessera.controller.slicing.state.holdings import queue_key
from tessera.controller.slicing.state.reservation import Reservation
from tessera.controller.slicing.state.reservation_rules import make_holds, overlap
from tessera.controller.slicing.state.slicer_state import SlicerState
from tessera.limits.planning import RESERVATIONS, RESERVED_PODS
from tessera.mig.names import resource_spelling


def adopt_reservations(state: SlicerState, *, keep: bool) -> int:
    """Takes over the recorded reservations of pods that wait; the others are removed from the objects.

    Args:
        state: gets the reservations.
        keep: False to remove them all.

    Returns:
        The highest number of a reservation; 0 without any.
    """
    for name, item in state.cluster.objects.items():
        if RESERVATIONS_ANNOTATION in item.metadata.annotations:
            state.dirty_nodes.add(name)
    units: set[str] = set()
    for node, uid, each in _recorded(state.cluster.objects.values()) if keep else ():
        found = _adopt(state, node, uid, each)
        if found is not None and (len(units) < RESERVATIONS or (found.gang or found.uid) in units):
            units.add(found.gang or found.uid)
            state.reservations[uid] = found
    state.reservations_due = True
    return max((each.number for each in state.reservations.values()), default=0)


def _recorded(items: Iterable[Instaslice]) -> list[tuple[NodeName, PodUid, RecordedReservation]]:
    """Returns the recorded entries, the first number first."""
    entries = [entry for item in items for entry in read_reservations(item)]
    return sorted(entries, key=lambda entry: entry[2].number)[:RESERVED_PODS]


def _adopt(
    state: SlicerState,
    node: NodeName,
    uid: PodUid,
    entry: RecordedReservation,
) -> Reservation | None:
    """Returns the reservation of an entry; None if it is not one of a waiting pod, or not legal on the cards."""
    pod = state.cluster.pods.get(uid)
    if pod is None or uid not in state.waiting or uid in state.reservations or not pod.gated:
        return None
    holds = make_holds(state, node, entry.slices, pod.key)
    if holds is None or sorted(resource_spelling(one.profile) for one in entry.slices) != sorted(pod.profiles):
        return None
    found = Reservation(
        uid=uid,
        key=pod.key,
        queue=queue_key(state, pod),
        priority=pod.priority,
        number=entry.number,
        node=node,
        slices=entry.slices,
        holds=holds,
        made=entry.made,
        until=entry.until,
        patience=entry.patience,
        holders={PodUid(holder) for holder in entry.holders},
        gang=pod.gang.key if pod.gang is not None and entry.gang else "",
    )
    return None if any(overlap(other, found) for other in state.reservations.values()) else found
