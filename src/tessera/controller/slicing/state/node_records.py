"""Reservations and moves, and the annotations of a node's Instaslice object that record them.

A *reservation* keeps slots for a pod that waits or may come. The controller writes ``tessera.dev/reservations`` when
one of the node changes, so that a new controller keeps the place, and ``tessera why`` reads what the controller
decided.

``tessera.dev/moves`` has the *moves* of the last hour of the moved pods' node. A move is recorded before the pod is
evicted, so the budget of an hour and the rest of a moved pod hold after a restart of the controller too. An update that
failed is recorded in the same way, so that its revision gets no further try: the pod that is evicted, and its revision.
Such an entry stays while its ReplicaSet has pods.

The node's agent may write the object, so it may forge an entry. A reservation counts only for a pod that waits, at
positions that are legal on the node's cards, and keeps slots of that node only. A move only prevents moves, for two
hours at most, or hand-overs. A controller reads both once, when it begins.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, TypeVar

import msgspec

from tessera.api.instaslice import Instaslice, Name, PodRef, Slice, Slices
from tessera.api.names import NodeName, PodUid
from tessera.controller.objects.pod_info import Owner
from tessera.controller.slicing.state.waiting_pod import QueueKey
from tessera.kube.resources import Wire
from tessera.placement.cards import SPARE_OF, Hold

#: Most reservations: waiting pods for which slots are kept at the same time; a gang counts as one. Each is applied to
#: every decision; the pods behind them get theirs as these start.
RESERVATIONS = 16
#: Most pods of one queue, the first in its order, that may get its reservation. Pods without any possible place may
#: stand first; pods behind these wait without a reservation.
RESERVATION_CANDIDATES = 16

#: Seconds after which a place is none: longer than that no slot is kept idle.
HORIZON = 86_400.0
#: Least seconds after which a reservation whose holders have not ended may move to another place.
PATIENCE = 600.0
#: Seconds until a pod without a possible place is searched for again.
RETRY = 30.0
#: Priority of reservations of inherited slots: higher than any pod's. Whoever has held them loses nothing to others.
INHERITED = 2**31


@dataclass(slots=True, eq=False)
class Reservation:
    """Slots that are kept for a waiting pod, for the next pod of an owner, or for those of a queue's services.

    Attributes:
        uid: the pod; one that has left its slots to its owner's next pod. Of spare slots a name of their own.
        key: its ``namespace/name``; ``Queue/NAME`` of spare slots.
        queue: the queue that it counts for.
        priority: the pod's priority.
        number: reservations of one priority go in the order of their numbers; 0 for inherited slots and spare ones.
        node: the node.
        slices: the positions, in the order of the pod's profiles.
        holds: the same as bits of cards.
        made: when it was made, seconds since 1970.
        until: when the slots are expected to be free; a younger pod may use them if it ends before.
        patience: seconds after which it may move.
        holders: pods that were known to hold slots of it: those at the beginning, and backfilled ones.
        gang: the gang of the pod if its pods have reservations together; empty for a pod that starts by itself. All of
            a gang have the same number and time, and none remains if one ends.
        kept_for: the owner for whose next pod the slots are kept, or the Queue; None once that pod waits.
    """

    uid: PodUid
    key: str
    queue: QueueKey
    priority: int
    number: int
    node: NodeName
    slices: tuple[Slice, ...]
    holds: tuple[Hold, ...]
    made: float
    until: float
    patience: float = PATIENCE
    holders: set[PodUid] = field(default_factory=set)
    gang: str = ""
    kept_for: Owner | None = None

    @property
    def is_inherited(self) -> bool:
        """True if a pod of the same owner held the slots before, or a queue keeps them for services and this is one."""
        return not self.number and not self.is_spare

    @property
    def is_left(self) -> bool:
        """True if a pod has left the slots to its owner's next pod, which has not come."""
        return self.kept_for is not None and not self.is_spare

    @property
    def is_spare(self) -> bool:
        """True if a queue keeps the slots for pods of its services (:mod:`tessera.handover.spares`)."""
        return self.kept_for is not None and self.kept_for.maker.startswith(SPARE_OF)

    @property
    def slots(self) -> int:
        """The memory slots that it keeps."""
        return sum(each.size for each in self.slices)

    @property
    def rank(self) -> tuple[int, int]:
        """Sort key: the reservation that goes first has the least."""
        return (-self.priority, self.number)


#: Annotations of a node's Instaslice object in which the controller records reservations and moves.
RESERVATIONS_ANNOTATION = "tessera.dev/reservations"
MOVES_ANNOTATION = "tessera.dev/moves"
#: Most bytes of each. 400 moves, the most in an hour, take 47 KiB, and 16 reservations 30 KiB; a longer one is forged,
#: and is written anew.
RECORD_BYTES = 65_536
#: Most pods with recorded reservations that a new controller takes over, those of gangs each by itself. 16 gangs have
#: more at most, whose last ones then make theirs anew.
RESERVED_PODS = 1_024
#: Seconds since 1970, up to the year 9999.
_Date = Annotated[float, msgspec.Meta(ge=0, le=253_402_300_799)]
#: Seconds for which a move counts.
MOVE_COUNTS = 3600.0


class RecordedMove(Wire, frozen=True, kw_only=True):
    """One move.

    Attributes:
        uid: the pod that is moved.
        owner: UID of the controller that makes it anew.
        date: seconds since 1970.
        revision: 0 for a move; of a pod that failed in an update, its Deployment's revision.
    """

    uid: Name
    owner: Name
    date: _Date
    revision: Annotated[int, msgspec.Meta(ge=0, le=999_999_999)] = 0

    def counts(self, now: float) -> bool:
        """True within an hour of a move. The clock may have been set back since, by less than an hour."""
        return not self.revision and self.is_recent(now)

    def is_recent(self, now: float) -> bool:
        """True within an hour of it."""
        return abs(now - self.date) < MOVE_COUNTS


class RestingPods:
    """The pods that moves of the last hour let rest; a lookup costs the same for any number of moves."""

    def __init__(self, moves: Iterable[RecordedMove]) -> None:
        self._moved: set[str] = set()
        #: By owner of moved pods, the second of its first move.
        self._since: dict[str, int] = {}
        for each in moves:
            self._moved.add(each.uid)
            self._since[each.owner] = min(int(each.date), self._since.get(each.owner, int(each.date)))

    def contains(self, uid: PodUid, owner: str, created: float) -> bool:
        """True for a pod that was moved, and for pods that its owner has made since."""
        return uid in self._moved or (owner in self._since and created >= self._since[owner])


class RecordedReservation(Wire, frozen=True, kw_only=True):
    """One entry; see :class:`tessera.controller.slicing.state.node_records.Reservation`."""

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
    return _format(
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
    )


def read_reservations(item: Instaslice) -> Sequence[tuple[NodeName, PodUid, RecordedReservation]]:
    """Returns the entries of a node's object; none of a text that is too long, too deep or does not decode."""
    node, entries = NodeName(item.metadata.name), _read(item, RESERVATIONS_ANNOTATION, tuple[RecordedReservation, ...])
    return [(node, PodUid(each.pod_ref.uid), each) for each in entries[:RESERVED_PODS]]


def format_moves(found: Iterable[RecordedMove]) -> str | None:
    """Returns the annotation's text; None for no moves."""
    return _format(found)


def read_moves(item: Instaslice) -> Sequence[RecordedMove]:
    """Returns the moves that a node's object records; none of a text that is too long, too deep or does not decode."""
    return _read(item, MOVES_ANNOTATION, tuple[RecordedMove, ...])


_Entry = TypeVar("_Entry", bound=Wire)


def _format(found: Iterable[Wire]) -> str | None:
    entries = list(found)
    return msgspec.json.encode(entries).decode() if entries else None


def _read(item: Instaslice, annotation: str, kind: type[tuple[_Entry, ...]]) -> tuple[_Entry, ...]:
    text = item.metadata.annotations.get(annotation, "")
    if not text or len(text) > RECORD_BYTES:
        return ()
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return ()
