"""The time that pods take from a node to their first running container, by owner: a part of the price of a move.

It is measured at decisions, so it is exact to about a second. Nothing is kept over a restart of the controller: an
owner without a measured start counts with :data:`DEFAULT_START`.
"""

from tessera.api.names import PodUid
from tessera.controller.objects.pod_info import PodInfo
from tessera.limits.planning import COLD_STARTS

#: Seconds from eviction to work for an owner whose starts were not seen; an image of some gigabytes is pulled in them.
DEFAULT_START = 60.0


class ColdStarts:
    """The last start of each owner."""

    def __init__(self) -> None:
        #: By pod on a node that has not started yet, when it was first seen there.
        self._bound: dict[PodUid, float] = {}
        #: By owner, the seconds of its last start; the one that started last is the last.
        self._seconds: dict[str, float] = {}

    def observe(self, uid: PodUid, pod: PodInfo | None, now: float) -> None:
        """Takes in a pod that has changed; None if it is gone."""
        if pod is None or pod.finished or not pod.owner or not pod.movable:
            self._bound.pop(uid, None)
        elif pod.unstarted:
            self._bound.setdefault(uid, now)
        elif pod.node and (since := self._bound.pop(uid, None)) is not None and since:
            self._seconds.pop(pod.owner, None)
            self._seconds[pod.owner] = max(0.0, now - since)
            if len(self._seconds) > COLD_STARTS:
                del self._seconds[next(iter(self._seconds))]

    def seconds(self, owner: str) -> float:
        """Returns the seconds that the next pod of an owner will take."""
        return self._seconds.get(owner, DEFAULT_START)
