"""The order of waiting pods, and the index of those that wait for room.

Pods go by priority, then those with a reservation, then by age. A queue is what reservations are counted by: a
namespace is a queue of its own, unless its label ``tessera.dev/queue`` names one.

:class:`BlockedPods` keeps each queue's pods in order, so that the first of a queue is found without looking at all.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from tessera.api.names import PodUid
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.slicing.state.reservation import QueueKey, Reservation
from tessera.limits.planning import RESERVATION_CANDIDATES

#: Sort key of a pod. The least goes first.
Rank = tuple[int, int, int, str, str]


def rank(pod: PodInfo, reservations: Mapping[PodUid, Reservation]) -> Rank:
    """Sort key of pods: higher priority first, then by number of reservation, then older, then by name."""
    found = reservations.get(pod.uid)
    kept = (1, 0) if found is None else (0, found.number)
    return (-pod.priority, *kept, pod.created, pod.key)


class BlockedPods:
    """Waiting pods that the cards could hold if they were empty, each queue's in order."""

    def __init__(self) -> None:
        #: By queue, the pods in order; no list is empty.
        self._queues: dict[QueueKey, list[tuple[int, str, str, PodUid]]] = {}
        #: Of the same pods, the queue and the entry there.
        self._entries: dict[PodUid, tuple[QueueKey, tuple[int, str, str, PodUid]]] = {}

    def __contains__(self, uid: object) -> bool:
        return uid in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[PodUid]:
        return iter(self._entries)

    def put(self, pod: PodInfo, queue: QueueKey) -> None:
        """Adds a pod, or moves it to another queue."""
        entry = (-pod.priority, pod.created, pod.key, pod.uid)
        if self._entries.get(pod.uid) == (queue, entry):
            return
        self.discard(pod.uid)
        self._entries[pod.uid] = (queue, entry)
        insort(self._queues.setdefault(queue, []), entry)

    def queue_of(self, uid: PodUid) -> QueueKey | None:
        """Returns the queue of a pod; None for an unknown one."""
        known = self._entries.get(uid)
        return None if known is None else known[0]

    def discard(self, uid: PodUid) -> None:
        """Removes a pod; an unknown one is no error."""
        known = self._entries.pop(uid, None)
        if known is None:
            return
        queue, entry = known
        entries = self._queues[queue]
        del entries[bisect_left(entries, entry)]
        if not entries:
            del self._queues[queue]

    def first_of(self, queue: str, most: int) -> Sequence[PodUid]:
        """Returns the first pods of a queue without a kind of card."""
        return [entry[-1] for entry in self._queues.get((queue, ()), ())[:most]]

    def heads(self) -> Iterator[tuple[QueueKey, Sequence[PodUid]]]:
        """Yields each queue with its first pods."""
        for queue, entries in self._queues.items():
            yield queue, [entry[-1] for entry in islice(entries, RESERVATION_CANDIDATES)]
