"""Decides what to publish of a forecast: position and start to waiting pods, ends of leases to the slicer.

No I/O and no clock.

Rules:

- A pod that waits is told by its condition ``tessera.dev/SlicePromised``: False with reason, position and start; True
  once it has its slices. A pod that waits for less than ``TELL_AFTER`` seconds gets none, so a burst costs nothing.
- One write a minute and pod at most, and none while nothing changed: the reason or its sentence, the basis, the
  position, or the start by a quarter of the time that is left.
- An Event comes with the first write, and when reason or basis changed.
- ``QUEUE_WRITES`` a round at most: those whose last write is oldest.
- The slicer is told of an expected end of a lease when it has moved as far as a start must. A lease of many kinds is
  always expected to end in so many minutes from now, so its end moves with the time. Reservations need no more, and the
  record of events stays short.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tessera.api.names import PodUid
from tessera.forecast.queue_page import QueuedPod, condition_reason, queued_text

#: Most writes: conditions of waiting pods that one forecast writes, those that were written longest ago first. A few
#: writes a second; the others follow with the next forecast.
QUEUE_WRITES = 200

#: Seconds that a pod waits before it is told, and between two writes to a pod.
TELL_AFTER, PAUSE = 15.0, 60.0
#: Part of the remaining time by which a start or an end must move, and the least seconds.
_MOVED, _LEAST_MOVE = 0.25, 60.0
#: The reason of the condition once a pod has its slices.
PROMISED = "Promised"


@dataclass(frozen=True, slots=True)
class Announcement:
    """A condition to write.

    Attributes:
        uid: the pod.
        namespace: its namespace.
        name: its name.
        waits: False once the pod has its slices.
        reason: the condition's reason.
        text: its message.
        since: when its status became so: the time from which the age of a pod that waits counts, seconds since 1970.
        event: an Event with the same text is due.
    """

    uid: PodUid
    namespace: str
    name: str
    waits: bool
    reason: str
    text: str
    since: float
    event: bool = False


@dataclass(frozen=True, slots=True)
class _Told:
    at: float
    row: QueuedPod


class Announcer:
    """Chooses the writes of each round."""

    def __init__(self) -> None:
        #: The last announcement to each waiting pod. The next round removes pods that no longer wait.
        self._told: dict[PodUid, _Told] = {}

    def choose(self, rows: Iterable[QueuedPod], now: float) -> Sequence[Announcement]:
        """Returns the writes that are due for pods that wait, those that were told longest ago first."""
        waiting: dict[PodUid, QueuedPod] = {PodUid(each.uid): each for each in rows}
        for uid in self._told.keys() - waiting.keys():
            del self._told[uid]
        due = [row for row in waiting.values() if self._is_due(row, now)]
        due.sort(key=lambda row: self._told[PodUid(row.uid)].at if PodUid(row.uid) in self._told else 0.0)
        return [self._announce(row, now) for row in due[:QUEUE_WRITES]]

    def forget(self, uid: PodUid) -> None:
        """Notes that a write failed: the pod is told again in a later round."""
        self._told.pop(uid, None)

    def _announce(self, row: QueuedPod, now: float) -> Announcement:
        uid = PodUid(row.uid)
        before = self._told.get(uid)
        self._told[uid] = _Told(now, row)
        event = before is None or _kind(before.row) != _kind(row)
        return Announcement(
            uid,
            row.namespace,
            row.name,
            waits=True,
            reason=condition_reason(row.reason),
            text=queued_text(row),
            since=row.since,
            event=event,
        )

    def _is_due(self, row: QueuedPod, now: float) -> bool:
        if now - row.since < TELL_AFTER:
            return False
        before = self._told.get(PodUid(row.uid))
        if before is None:
            return True
        return now - before.at >= PAUSE and _has_changed(before.row, row, now)


class ChangedEnds:
    """The ends that were told, and those to tell; seconds since 1970."""

    def __init__(self) -> None:
        #: By pod that still runs, what was told last.
        self._told: dict[PodUid, float] = {}
        self._due: dict[PodUid, float] = {}

    def update(self, ends: Mapping[PodUid, float], now: float) -> None:
        """Takes in the expected ends of all leases that are known now."""
        self._due = {uid: end for uid, end in ends.items() if _has_moved(self._told.get(uid), end, now)}
        self._told = {uid: self._due.get(uid, self._told.get(uid, end)) for uid, end in ends.items()}

    def pop(self) -> Mapping[PodUid, float]:
        """Returns the ends to tell, once."""
        due, self._due = self._due, {}
        return due


def _has_changed(before: QueuedPod, after: QueuedPod, now: float) -> bool:
    if (_kind(before), before.position, before.detail) != (_kind(after), after.position, after.detail):
        return True
    pairs = ((before.start.p50, after.start.p50), (before.start.p90, after.start.p90))
    return any(_has_moved(one, other, now) for one, other in pairs)


def _has_moved(one: float | None, other: float | None, now: float) -> bool:
    if one is None or other is None:
        return one is not other
    return abs(one - other) > max(_LEAST_MOVE, _MOVED * max(0.0, other - now))


def _kind(row: QueuedPod) -> tuple[str, str]:
    return (row.reason, row.start.basis)
