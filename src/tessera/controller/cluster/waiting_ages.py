"""The ages of waiting pods: for how long each has competed for room. The older pod goes first.

Who creates a pod could make it long before its turn, and have an age when it matters. So only the time counts in which
a pod could have been placed:

- An age begins when the last gate of others is gone, or with the pod if it has none. The time behind such a gate, of
  Kueue or of the pod's author, counts for nobody.
- While no node could take the pod by its rules, or its gang is incomplete, its age stands still.
- Kueue deletes a pod that is not ready in time (``waitForPodsReady``), also one that waits at our gate; an eviction by
  a person does the same. Its controller makes another pod at once, which has the age of the pod before it: the time
  for which that one competed, and the pause between them up to :data:`PAUSE`. The oldest age goes first. A pod that
  asks for something else, or whose owner is of a kind that makes no pods, inherits nothing.

Owner references are written by tenants, so an owner counts in its namespace only, and a namespace has a bound of its
own. An age that nobody inherits expires.

The pod's condition ``tessera.dev/SlicePromised``, where tenants cannot write, keeps the age for a new controller. The
age of a pod without it, which is older than :data:`UNTOLD`, begins anew: it stood still. Ages that nobody has inherited
yet are only in memory.
"""

import dataclasses
from collections.abc import Hashable
from typing import NamedTuple

from tessera.api.names import PodUid
from tessera.clock import parse_time_or_zero, rfc3339
from tessera.controller.objects.pod_info import PodInfo
from tessera.limits.planning import REMEMBERED_AGES, REMEMBERED_AGES_OF_NAMESPACE

#: Seconds for which an age is kept. Kueue may let an evicted Workload wait for hours before it makes its pods again.
EXPIRY = 86_400.0
#: Seconds between two pods of an owner that count for the age of the second.
PAUSE = 60.0
#: Seconds within which a waiting pod is told so (:mod:`tessera.controller.forecasting.announcements`).
UNTOLD = 60.0


class _Age(NamedTuple):
    """The seconds that a pod competed, negative so that the longest sorts first, and when it left, since 1970."""

    minus_seconds: float
    left: float


class WaitingAges:
    """Gives each waiting pod the time from which its age counts, as :attr:`PodInfo.created`."""

    def __init__(self) -> None:
        #: By living pod, the time from which its age counts, if that is not its creation.
        self._since: dict[PodUid, str] = {}
        #: Pods that do not compete, and the time up to which that is counted, seconds since 1970.
        self._idle: dict[PodUid, float] = {}
        #: Living pods that gates of others hold.
        self._gated: set[PodUid] = set()
        #: Living pods whose age was left: they are being deleted.
        self._left: set[PodUid] = set()
        #: By namespace and request of an owner's pods, ages that no pod has taken over, sorted; nothing is empty.
        self._ages: dict[str, dict[Hashable, list[_Age]]] = {}
        #: By namespace, the number of its ages, at most :data:`REMEMBERED_AGES_OF_NAMESPACE`; none is 0.
        self._counts: dict[str, int] = {}
        #: The sum of ``_counts``, at most :data:`REMEMBERED_AGES`.
        self._count = 0

    def observe(self, pod: PodInfo, now: float, *, known: bool, competes: bool) -> PodInfo:
        """Returns a pod with its age.

        Args:
            pod: the pod as its object says it.
            now: seconds since 1970; 0 if unknown.
            known: False when it is seen for the first time.
            competes: it waits, and planning found that it lacks nothing but room.
        """
        if pod.gated and pod.earlier_gates:
            self._gated.add(pod.uid)
            return pod
        if pod.uid in self._gated:
            self._gated.discard(pod.uid)
            self._begin(pod, self._inherited(pod, now) or _earliest(now, pod))
        elif not known and pod.gated and not pod.terminating:
            self._begin(pod, pod.waits_since or self._inherited(pod, now) or _untold(pod, now))
        aged = self._aged(pod)
        if pod.terminating and pod.gated and competes:
            self._leave(aged, now)
        return aged

    def forget(self, uid: PodUid, pod: PodInfo | None, now: float, *, competes: bool) -> None:
        """Takes in that a pod is gone; ``pod`` is its last state with its age, None if it was not known."""
        if pod is not None and pod.gated and competes:
            self._leave(pod, now)
        self._since.pop(uid, None)
        self._idle.pop(uid, None)
        self._gated.discard(uid)
        self._left.discard(uid)

    def note(self, pod: PodInfo, now: float, *, competes: bool) -> None:
        """Takes in whether planning found that a waiting pod lacks nothing but room."""
        if competes:
            self._idle.pop(pod.uid, None)
        else:
            self._idle.setdefault(pod.uid, now)

    def settle(self, pod: PodInfo, now: float) -> PodInfo:
        """Returns a pod that is about to be planned without the time for which its age stood still."""
        since = self._idle.get(pod.uid)
        if since is None or now < since + 1:
            return pod
        self._idle[pod.uid] = now
        self._begin(pod, _date(parse_time_or_zero(pod.created) + now - since, pod))
        return self._aged(pod)

    def is_idle(self, uid: PodUid) -> bool:
        """True for a pod that does not compete."""
        return uid in self._idle

    def _begin(self, pod: PodInfo, since: str) -> None:
        if since != pod.created:
            self._since[pod.uid] = since

    def _aged(self, pod: PodInfo) -> PodInfo:
        since = self._since.get(pod.uid)
        return pod if since is None or since == pod.created else dataclasses.replace(pod, created=since)

    # Ages that go from pod to pod

    def _inherited(self, pod: PodInfo, now: float) -> str:
        """Returns the time from which an age counts that the pod takes over; empty if there is none."""
        if not pod.maker:
            return ""
        key = _request(pod)
        ages = [age for age in self._take(pod.namespace, key) if now < age.left + EXPIRY]
        found = ages.pop(0) if ages else None
        self._keep(pod.namespace, key, ages)
        if found is None:
            return ""
        return _date(max(found.left, now - PAUSE) + found.minus_seconds, pod)

    def _leave(self, pod: PodInfo, now: float) -> None:
        if not pod.maker or not pod.profiles or pod.finished or pod.uid in self._left or not now:
            return
        self._left.add(pod.uid)
        if self._counts.get(pod.namespace, 0) >= REMEMBERED_AGES_OF_NAMESPACE:
            self._forget_first(pod.namespace)
        if self._count >= REMEMBERED_AGES:
            self._forget_first(max(self._counts, key=lambda namespace: self._counts[namespace]))
        key = _request(pod)
        age = _Age(min(0.0, parse_time_or_zero(pod.created) - now), now)
        self._keep(pod.namespace, key, sorted([*self._take(pod.namespace, key), age]))

    def _take(self, namespace: str, key: Hashable) -> list[_Age]:
        """Removes and returns the ages of an owner's pods."""
        owners = self._ages.get(namespace, {})
        found = owners.pop(key, [])
        if found:
            self._count -= len(found)
            self._counts[namespace] -= len(found)
            if not owners:
                del self._ages[namespace], self._counts[namespace]
        return found

    def _keep(self, namespace: str, key: Hashable, ages: list[_Age]) -> None:
        """Adds the ages of an owner's pods, which have none."""
        if ages:
            self._ages.setdefault(namespace, {})[key] = ages
            self._counts[namespace] = self._counts.get(namespace, 0) + len(ages)
            self._count += len(ages)

    def _forget_first(self, namespace: str) -> None:
        """Forgets the youngest age of the owner in a namespace whose ages were changed longest ago."""
        key, ages = next(iter(self._ages[namespace].items()))
        if len(ages) == 1:
            self._take(namespace, key)
        else:
            ages.pop()
            self._counts[namespace] -= 1
            self._count -= 1


def _request(pod: PodInfo) -> Hashable:
    """Returns what pods of one owner must have in common so that one inherits the age of another."""
    return (pod.owner, pod.maker, pod.profiles, tuple(sorted(pod.amounts.items())), pod.constraints, pod.relations)


def _untold(pod: PodInfo, now: float) -> str:
    """Returns the time from which the age of a pod counts that no controller told of its wait.

    It was created a moment ago; or a gate of others is gone since a moment, or nobody could take it. If no controller
    has run, all such pods are as old, in the order of their creation.
    """
    created = parse_time_or_zero(pod.created)
    return pod.created if not created or now < created + UNTOLD else _date(now, pod)


def _earliest(now: float, pod: PodInfo) -> str:
    """Returns the present time; the pod's creation while that is unknown."""
    return _date(now, pod) if now else pod.created


def _date(seconds: float, pod: PodInfo) -> str:
    """Returns a time whose fraction orders the pods of one second by their creation."""
    return f"{rfc3339(seconds)[:-1]}.{max(0, int(parse_time_or_zero(pod.created))):010d}Z"
