"""Reservations as the annotation ``tessera.dev/reservations`` of a node's Instaslice object.

The controller writes it when a reservation of the node changes, so that a new controller keeps the place, and
``tessera why`` reads what the controller decided. The node's agent may write the object, so it may forge an entry. An
entry counts only for a pod that waits, at positions that are legal on the node's cards, and keeps slots of that node
only.
"""

from collections.abc import Iterable, Sequence
from typing import Annotated

import msgspec

from tessera.api.instaslice import Instaslice, Name, PodRef, Slices
from tessera.api.names import NodeName, PodUid
from tessera.controller.objects.pod_info import Owner, PodInfo
from tessera.controller.slicing.state.reservation import HORIZON, INHERITED, RESERVATIONS, Reservation
from tessera.controller.slicing.state.reservation_rules import make_holds, overlap, queue_key
from tessera.controller.slicing.state.slicer_state import SlicerState
from tessera.kube.resources import Wire
from tessera.mig.names import plain_profile, resource_spelling
from tessera.placement.cards import SPARE_OF

#: Most pods with recorded reservations that a new controller takes over, those of gangs each by itself. 16 gangs have
#: more at most, whose last ones then make theirs anew.
RESERVED_PODS = 1_024
#: Most bytes: annotation of a node's Instaslice object in which the controller records reservations. 16 reservations
#: take 30 KiB at most; a longer one is forged, and is written anew.
RESERVATION_RECORD_BYTES = 65_536

#: The annotation.
RESERVATIONS_ANNOTATION = "tessera.dev/reservations"

#: Seconds since 1970, up to the year 9999.
_Date = Annotated[float, msgspec.Meta(ge=0, le=253_402_300_799)]


class RecordedReservation(Wire, frozen=True, kw_only=True):
    """One entry; see :class:`tessera.controller.slicing.state.reservation.Reservation`."""

    pod_ref: PodRef
    queue: Name
    slices: Slices
    number: Annotated[int, msgspec.Meta(ge=0, le=2**53)]
    made: _Date
    until: _Date
    patience: Annotated[float, msgspec.Meta(ge=0, le=100 * HORIZON)]
    holders: Annotated[tuple[Name, ...], msgspec.Meta(max_length=1_000)] = ()
    gang: bool = False
    kept_for: Annotated[str, msgspec.Meta(max_length=320)] = ""
    kept_for_uid: Name = ""


def format_reservations(found: Iterable[Reservation]) -> str | None:
    """Returns the annotation's text for the reservations of one node; None for none."""
    entries = [
        RecordedReservation(
            pod_ref=PodRef(namespace=each.key.partition("/")[0], name=each.key.partition("/")[2], uid=each.uid),
            queue=each.queue[0],
            slices=each.slices,
            number=each.number,
            made=each.made,
            until=each.until,
            patience=min(each.patience, 100 * HORIZON),
            holders=tuple(sorted(each.holders)),
            gang=bool(each.gang),
            kept_for=each.kept_for.maker if each.kept_for is not None else "",
            kept_for_uid=each.kept_for.uid if each.kept_for is not None else "",
        )
        for each in sorted(found, key=lambda each: each.number)
    ]
    return msgspec.json.encode(entries).decode() if entries else None


def read_reservations(item: Instaslice) -> Sequence[tuple[NodeName, PodUid, RecordedReservation]]:
    """Returns the entries of a node's object; none of a text that is too long, too deep or does not decode."""
    text = item.metadata.annotations.get(RESERVATIONS_ANNOTATION, "")
    if not text or len(text) > RESERVATION_RECORD_BYTES:
        return ()
    try:
        entries = msgspec.json.decode(text, type=tuple[RecordedReservation, ...])
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return ()
    node = NodeName(item.metadata.name)
    return [(node, PodUid(each.pod_ref.uid), each) for each in entries[:RESERVED_PODS]]


def adopt_reservations(state: SlicerState, *, keep: bool, inherits: bool) -> int:
    """Takes over the recorded reservations of pods that wait; the others are removed from the objects.

    Args:
        state: gets the reservations.
        keep: False to remove all but those of inherited slots.
        inherits: False to remove those that no pod waits for.

    Returns:
        The highest number of a reservation; 0 without any.
    """
    for name, item in state.cluster.objects.items():
        if RESERVATIONS_ANNOTATION in item.metadata.annotations:
            state.dirty_nodes.add(name)
    units: set[str] = set()
    for node, uid, each in _recorded(state.cluster.objects.values()):
        is_kept = (keep or not each.number) and (inherits or not each.kept_for)
        found = _adopt(state, node, uid, each) if is_kept else None
        if found is not None and (
            found.is_inherited or len(units) < RESERVATIONS or (found.gang or found.uid) in units
        ):
            units.update([] if found.is_inherited else [found.gang or found.uid])
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
    """Returns the reservation of an entry; None if it is not one of a waiting pod, or not legal on the cards.

    One of slots that a pod has left needs no pod: its owner is asked about anew.
    """
    pod = state.cluster.pods.get(uid)
    owner = None
    if entry.kept_for and not entry.number:
        owner = Owner(entry.pod_ref.namespace, entry.kept_for, entry.kept_for_uid)
    elif (
        pod is None
        or uid not in state.waiting
        or not pod.is_held
        or sorted(resource_spelling(one.profile) for one in entry.slices) != sorted(map(plain_profile, pod.profiles))
    ):
        return None
    key = f"{entry.pod_ref.namespace}/{entry.pod_ref.name}"
    holds = make_holds(state, node, entry.slices, key)
    if holds is None or uid in state.reservations:
        return None
    found = Reservation(
        uid=uid,
        key=key,
        queue=queue_key(state, pod) if pod is not None else (entry.queue, ()),
        priority=_priority(entry, pod),
        number=entry.number,
        node=node,
        slices=entry.slices,
        holds=holds,
        made=entry.made,
        until=entry.until,
        patience=entry.patience,
        holders={PodUid(holder) for holder in entry.holders},
        gang=pod.gang.key if pod is not None and pod.gang is not None and entry.gang else "",
        kept_for=owner,
    )
    return None if any(overlap(other, found) for other in state.reservations.values()) else found


def _priority(entry: RecordedReservation, pod: PodInfo | None) -> int:
    if entry.number:
        return pod.priority if pod is not None else 0
    return 0 if entry.kept_for.startswith(SPARE_OF) else INHERITED
