"""Chooses which expected ends of leases the slicer is told: those that have moved since it was told.

A lease of many kinds is always expected to end in so many minutes from now, so its end moves with the time. Only a move
by a quarter of the time that is left counts, and by a minute at least: reservations need no more, and the record of
events stays short.
"""

from collections.abc import Mapping

from tessera.api.names import PodUid

#: Part of the remaining time by which an end must move, and the least seconds.
_MOVED, _LEAST_MOVE = 0.25, 60.0


class ChangedEnds:
    """The ends that were told, and those to tell; seconds since 1970."""

    def __init__(self) -> None:
        #: By pod that still runs, what was told last.
        self._told: dict[PodUid, float] = {}
        self._due: dict[PodUid, float] = {}

    def update(self, ends: Mapping[PodUid, float], now: float) -> None:
        """Takes in the expected ends of all leases that are known now."""
        self._due = {uid: end for uid, end in ends.items() if self._has_moved(self._told.get(uid), end, now)}
        self._told = {uid: self._due.get(uid, self._told.get(uid, end)) for uid, end in ends.items()}

    def pop(self) -> Mapping[PodUid, float]:
        """Returns the ends to tell, once."""
        due, self._due = self._due, {}
        return due

    def _has_moved(self, told: float | None, end: float, now: float) -> bool:
        return told is None or abs(end - told) > max(_LEAST_MOVE, _MOVED * (end - now))
