"""Moves of the last hour, as the annotation ``tessera.dev/moves`` of the Instaslice object of the moved pod's node.

An update that failed is recorded in the same way, so that its revision gets no further try: the pod that is evicted,
and its revision. Such an entry stays while its ReplicaSet has pods.

A move is recorded before the pod is evicted, so the budget of an hour and the rest of a moved pod hold after a restart
of the controller too. The node's agent may write the object, so it may forge an entry. An entry only prevents moves,
for two hours at most, or hand-overs, and is read once, when a controller begins.
"""

from collections.abc import Iterable, Sequence
from typing import Annotated

import msgspec

from tessera.api.instaslice import Instaslice, Name
from tessera.api.names import PodUid
from tessera.kube.resources import Wire

#: Most bytes: annotation of a node's Instaslice object in which the controller records moves. 400 moves, the most in an
#: hour, take 47 KiB; a longer one is forged, and is written anew.
MOVE_RECORD_BYTES = 65_536

#: The annotation.
MOVES_ANNOTATION = "tessera.dev/moves"
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
    date: Annotated[float, msgspec.Meta(ge=0, le=253_402_300_799)]
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


def format_moves(found: Iterable[RecordedMove]) -> str | None:
    """Returns the annotation's text; None for no moves."""
    entries = list(found)
    return msgspec.json.encode(entries).decode() if entries else None


def read_moves(item: Instaslice) -> Sequence[RecordedMove]:
    """Returns the moves that a node's object records; none of a text that is too long, too deep or does not decode."""
    text = item.metadata.annotations.get(MOVES_ANNOTATION, "")
    if not text or len(text) > MOVE_RECORD_BYTES:
        return ()
    try:
        return msgspec.json.decode(text, type=tuple[RecordedMove, ...])
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return ()
