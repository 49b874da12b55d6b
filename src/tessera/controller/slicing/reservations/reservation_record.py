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
from tessera.controller.slicing.state.reservation import HORIZON, Reservation
from tessera.kube.resources import Wire
from tessera.limits.planning import RESERVATION_RECORD_BYTES, RESERVED_PODS

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
