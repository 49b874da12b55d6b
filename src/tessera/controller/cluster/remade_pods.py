"""Pods that are made anew while they wait keep the age of the pod that they replace.

Kueue deletes a pod that is not ready in time (``waitForPodsReady``), also one that waits at our gate; an eviction by a
person does the same. The owner makes another pod at once, and without this it would go behind every younger pod each
time. An age goes to the next pod of the same owner, the oldest age first. A pod that had its slices leaves no age.

The ages are only in memory: after a restart, a pod is as old as its object. They do not expire, since a pod that waits
keeps its age for nothing as well.
"""

import dataclasses

from tessera.api.names import PodUid
from tessera.controller.objects.pod_info import PodInfo
from tessera.limits.planning import REMEMBERED_AGES


class RemadePods:
    """Ages of pods that left while they waited, until the next pods of their owners take them over."""

    def __init__(self) -> None:
        #: By owner, creation times that no pod has taken over; no list is empty.
        self._ages: dict[str, list[str]] = {}
        #: The number of all times in ``_ages``, at most :data:`REMEMBERED_AGES`.
        self._count = 0
        #: By living pod, the time that it took over.
        self._inherited: dict[PodUid, str] = {}
        #: Living pods whose age was left: they are being deleted.
        self._left: set[PodUid] = set()

    def observe(self, pod: PodInfo, *, known: bool) -> PodInfo:
        """Returns a pod with the age that it has; ``known`` is False when it is seen for the first time."""
        if not known and self._waits(pod):
            ages = self._ages.get(pod.owner)
            if ages is not None and ages[0] < pod.created:
                self._inherited[pod.uid] = ages.pop(0)
                self._count -= 1
                if not ages:
                    del self._ages[pod.owner]
        age = self._inherited.get(pod.uid)
        aged = dataclasses.replace(pod, created=age) if age is not None else pod
        if pod.terminating and pod.gated:
            self._leave(aged)
        return aged

    def forget(self, uid: PodUid, pod: PodInfo | None) -> None:
        """Takes in that a pod is gone; ``pod`` is its last state with its age, ``None`` if it was not known."""
        if pod is not None and pod.gated:
            self._leave(pod)
        self._inherited.pop(uid, None)
        self._left.discard(uid)

    def _leave(self, pod: PodInfo) -> None:
        if not pod.owner or not pod.profiles or pod.finished or pod.uid in self._left:
            return
        self._left.add(pod.uid)
        if self._count >= REMEMBERED_AGES:
            oldest = next(iter(self._ages))
            self._count -= len(self._ages.pop(oldest))
        ages = self._ages.setdefault(pod.owner, [])
        ages.append(pod.created)
        ages.sort()
        self._count += 1

    @staticmethod
    def _waits(pod: PodInfo) -> bool:
        return bool(pod.owner) and pod.gated and not pod.terminating
