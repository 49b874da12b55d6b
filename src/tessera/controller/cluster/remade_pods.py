"""Pods that are made anew while they wait keep the age of the pod that they replace.

Kueue deletes a pod that is not ready in time (``waitForPodsReady``), also one that waits at our gate; an eviction by a
person does the same. The owner makes another pod at once, and without this it would go behind every younger pod each
time. An age goes to the next pod of the same owner, the oldest age first. A pod that had its slices leaves no age.

Owner references are written by tenants, so an owner counts in its namespace only, and a namespace has a bound of its
own. An age expires, so that nobody saves up ages for later.

The ages are only in memory: after a restart, a pod is as old as its object.
"""

import dataclasses
from typing import NamedTuple

from tessera.api.names import PodUid
from tessera.controller.objects.pod_info import PodInfo
from tessera.limits.planning import REMEMBERED_AGES, REMEMBERED_AGES_OF_NAMESPACE

#: Seconds for which an age is kept. Kueue may let an evicted Workload wait for hours before it makes its pods again.
EXPIRY = 86_400.0


class _Age(NamedTuple):
    """The creation time of a pod that left, and when it left, seconds since 1970."""

    created: str
    left: float


class RemadePods:
    """Ages of pods that left while they waited, until the next pods of their owners take them over."""

    def __init__(self) -> None:
        #: By namespace and owner, ages that no pod has taken over, sorted; no list and no namespace is empty.
        self._ages: dict[str, dict[str, list[_Age]]] = {}
        #: By namespace, the number of its ages, at most :data:`REMEMBERED_AGES_OF_NAMESPACE`; none is 0.
        self._counts: dict[str, int] = {}
        #: The sum of ``_counts``, at most :data:`REMEMBERED_AGES`.
        self._count = 0
        #: By living pod, the time that it took over.
        self._inherited: dict[PodUid, str] = {}
        #: Living pods whose age was left: they are being deleted.
        self._left: set[PodUid] = set()

    def observe(self, pod: PodInfo, now: float, *, known: bool) -> PodInfo:
        """Returns a pod with the age that it has.

        Args:
            pod: the pod as its object says it.
            now: seconds since 1970.
            known: False when it is seen for the first time.
        """
        if not known and self._waits(pod):
            ages = [age for age in self._take(pod.namespace, pod.owner) if now < age.left + EXPIRY]
            if ages and ages[0].created < pod.created:
                self._inherited[pod.uid] = ages.pop(0).created
            self._keep(pod.namespace, pod.owner, ages)
        age = self._inherited.get(pod.uid)
        aged = dataclasses.replace(pod, created=age) if age is not None else pod
        if pod.terminating and pod.gated:
            self._leave(aged, now)
        return aged

    def forget(self, uid: PodUid, pod: PodInfo | None, now: float) -> None:
        """Takes in that a pod is gone; ``pod`` is its last state with its age, ``None`` if it was not known."""
        if pod is not None and pod.gated:
            self._leave(pod, now)
        self._inherited.pop(uid, None)
        self._left.discard(uid)

    def _leave(self, pod: PodInfo, now: float) -> None:
        if not pod.owner or not pod.profiles or pod.finished or pod.uid in self._left:
            return
        self._left.add(pod.uid)
        if self._counts.get(pod.namespace, 0) >= REMEMBERED_AGES_OF_NAMESPACE:
            self._forget_first(pod.namespace)
        if self._count >= REMEMBERED_AGES:
            self._forget_first(max(self._counts, key=lambda namespace: self._counts[namespace]))
        ages = self._take(pod.namespace, pod.owner)
        self._keep(pod.namespace, pod.owner, sorted([*ages, _Age(pod.created, now)]))

    def _take(self, namespace: str, owner: str) -> list[_Age]:
        """Removes and returns the ages of an owner."""
        owners = self._ages.get(namespace, {})
        found = owners.pop(owner, [])
        if found:
            self._count -= len(found)
            self._counts[namespace] -= len(found)
            if not owners:
                del self._ages[namespace], self._counts[namespace]
        return found

    def _keep(self, namespace: str, owner: str, ages: list[_Age]) -> None:
        """Adds the ages of an owner that has none."""
        if ages:
            self._ages.setdefault(namespace, {})[owner] = ages
            self._counts[namespace] = self._counts.get(namespace, 0) + len(ages)
            self._count += len(ages)

    def _forget_first(self, namespace: str) -> None:
        """Forgets the youngest age of the owner in a namespace whose ages were changed longest ago."""
        owner, ages = next(iter(self._ages[namespace].items()))
        if len(ages) == 1:
            self._take(namespace, owner)
        else:
            ages.pop()
            self._counts[namespace] -= 1
            self._count -= 1

    @staticmethod
    def _waits(pod: PodInfo) -> bool:
        return bool(pod.owner) and pod.gated and not pod.terminating
