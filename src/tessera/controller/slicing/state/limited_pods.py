"""Waiting pods that the maximum of their queue holds back, and which of them are planned again.

A queue is *relieved* when a pod of it may fit again: its pods hold less, fewer slots are reserved for it, its maximum
has changed, or one of the pods that wait for the maximum waits no more, which held back those behind it. Then its first
pods are planned again. The next ones follow once one of those has a place, or once none of those waits for the maximum
any more: they may all wait for room on the cards that the next ones do not need. Room on a node alone lets no pod be
planned again that waits for the maximum.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import islice

from tessera.api.names import PodUid
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.slicing.state.waiting_order import BlockedPods
from tessera.limits.planning import RETRIED_PODS


class LimitedPods:
    """The pods of all queues.

    Args:
        relieved: the queues that were relieved; others add to it, and :meth:`pop_retries` empties it.
    """

    def __init__(self, relieved: set[str]) -> None:
        self._pods = BlockedPods()
        self._relieved = relieved
        #: Pods that :meth:`pop_retries` returned and that are not decided yet, with their queue.
        self._retried: dict[PodUid, str] = {}
        #: Number of these pods by queue.
        self._undecided: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._pods)

    @property
    def are_due(self) -> bool:
        """True if pods may have to be planned again."""
        return bool(self._relieved and self._pods)

    def put(self, pod: PodInfo, queue: str) -> None:
        """Adds a pod that waits for the maximum of this queue, and of no other any more."""
        if self._pods.queue_of(pod.uid) not in (None, (queue, ())):
            self.discard(pod.uid)
        self._note_decided(pod.uid)
        self._pods.put(pod, (queue, ()))

    def discard(self, uid: PodUid) -> None:
        """Removes a pod that waits for something else than a maximum; an unknown one is no error."""
        queue = self._note_decided(uid)
        if queue is not None and not self._undecided[queue]:
            self._relieved.add(queue)
        found = self._pods.queue_of(uid)
        if found is not None:
            self._pods.discard(uid)
            self._relieved.add(found[0])

    def leave(self, uid: PodUid) -> None:
        """Removes a pod that waits no more, since it has a place or is gone; an unknown one is no error."""
        if uid in self._retried:
            self._relieved.add(self._retried[uid])
        self.discard(uid)

    def _note_decided(self, uid: PodUid) -> str | None:
        """Returns the queue of a pod that :meth:`pop_retries` returned, once."""
        queue = self._retried.pop(uid, None)
        if queue is not None:
            self._undecided[queue] -= 1
        return queue

    def relieve_all(self) -> None:
        """Lets the first pods of all queues be planned again."""
        self._relieved.update(queue for (queue, _), _ in self._pods.heads())

    def first(self, queue: str) -> PodUid | None:
        """Returns the first pod of a queue."""
        return next(iter(self._pods.first_of(queue, 1)), None)

    def firsts(self) -> Sequence[PodUid]:
        """Returns the first pod of each queue."""
        return [uid for _, uids in self._pods.heads() for uid in islice(uids, 1)]

    def pop_retries(self) -> Sequence[PodUid]:
        """Returns the pods that must be planned again now, the first ones of each relieved queue, and removes them."""
        found = {uid: queue for queue in sorted(self._relieved) for uid in self._pods.first_of(queue, RETRIED_PODS)}
        self._relieved.clear()
        for uid in found:
            self._pods.discard(uid)
        self._retried |= found
        self._undecided = Counter(self._retried.values())
        return list(found)
