"""One pod that Tessera decides about, from the moment it waits until it has started or is gone: its state, its age.

A pod has one state. :data:`NEXT` is the table of the steps between states; every step goes through
:meth:`tessera.controller.slicing.state.waiting_pods.WaitingPods.move`.

=============  ======================================================================================================
state          the pod
=============  ======================================================================================================
``OUTSIDE``    needs no decision: it runs, has ended, asks for nothing, or gates of others hold it.
``QUEUED``     waits, and is planned in the next round.
``RELIEVED``   waited for its queue's maximum; its queue holds less now, so it is planned again.
``LIMITED``    waits for its queue's maximum.
``BLOCKED``    waits for room: the cards could hold it if other pods ended.
``REFUSED``    waits for something else: cards, the rules of nodes, the other pods of its gang.
``FIXED``      only nodes with a fixed layout serve it: its gate goes, and kube-scheduler places it.
``PLACED``     has slices.
``STUCK``      has slices and cannot start with them: the scheduler refuses it there or has not bound it in time, or the
               node's agent is down.
``DENIED``     the API server refuses its pin; the pod is tried again once it changes.
``WITHDRAWN``  is past the gate, lost its slices, and nothing has bound it since.
``LOST``       is such a pod, and the scheduler refuses it: its owner is to make it anew.
=============  ======================================================================================================
"""

import dataclasses
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from tessera.api.names import PodUid
from tessera.clock import parse_time_or_zero, rfc3339
from tessera.controller.objects.pod_info import Owner, PodInfo
from tessera.reasons.reason import QueueFull, Reason

#: A queue, and the tables of card models on which its pods compete.
QueueKey = tuple[str, tuple[int, ...]]


def waits_for_room(reason: Reason | None) -> bool:
    """True if the end of other pods could make room: on the cards, or of CPU and memory on a node."""
    return reason is not None and reason.waits_for_room


def competes_for_room(reason: Reason | None) -> bool:
    """True if a pod with this reason takes room that becomes free; None is that of a pod that is not planned yet."""
    return reason is None or reason.competes


#: Of :attr:`WaitingPod.refused_at`: planning has not refused the pod, or is to forget that it has.
NOT_REFUSED = -1


class PodState(Enum):
    """The state of a pod; see the table above."""

    OUTSIDE = "outside"
    QUEUED = "queued"
    RELIEVED = "relieved"
    LIMITED = "limited"
    BLOCKED = "blocked"
    REFUSED = "refused"
    FIXED = "fixed"
    PLACED = "placed"
    STUCK = "stuck"
    DENIED = "denied"
    WITHDRAWN = "withdrawn"
    LOST = "lost"

    #: Members are single, and each step looks some up: Enum's own hash is a call of Python.
    __hash__ = object.__hash__


#: The pod has no slices and is to get some.
WAITING = frozenset({PodState.QUEUED, PodState.RELIEVED, PodState.LIMITED, PodState.BLOCKED, PodState.REFUSED})
#: The pod has slices: a current allocation.
PROMISED = frozenset({PodState.PLACED, PodState.STUCK})
#: The pod is past the gate, and cannot start as it is.
CANNOT_START = frozenset({PodState.STUCK, PodState.LOST})
_ENDS = frozenset({PodState.OUTSIDE, PodState.DENIED, PodState.WITHDRAWN, PodState.LOST})
_DECIDED = PROMISED | {PodState.LIMITED, PodState.BLOCKED, PodState.REFUSED, PodState.FIXED}

#: By state, the states that may follow. A pod may come to have slices at any time: another process has recorded them.
NEXT: Mapping[PodState, frozenset[PodState]] = {
    PodState.OUTSIDE: PROMISED | _ENDS | {PodState.QUEUED},
    PodState.QUEUED: _DECIDED | _ENDS,
    PodState.RELIEVED: _DECIDED | _ENDS,
    PodState.LIMITED: _DECIDED | _ENDS | {PodState.QUEUED, PodState.RELIEVED},
    PodState.BLOCKED: _DECIDED | _ENDS,
    PodState.REFUSED: _DECIDED | _ENDS | {PodState.QUEUED},
    PodState.FIXED: PROMISED | _ENDS | {PodState.QUEUED},
    PodState.PLACED: PROMISED | _ENDS | {PodState.QUEUED},
    PodState.STUCK: PROMISED | _ENDS | {PodState.QUEUED},
    PodState.DENIED: PROMISED | _ENDS | {PodState.QUEUED},
    PodState.WITHDRAWN: PROMISED | _ENDS | {PodState.QUEUED},
    PodState.LOST: PROMISED | _ENDS | {PodState.QUEUED},
}


@dataclass(slots=True, eq=False)
class WaitingPod:
    """What the slicer knows of a pod besides its object.

    Attributes:
        uid: the pod.
        state: its state.
        previous: the state before.
        reason: why planning refused it last; None before, and in a state that does not wait.
        queue: the queue whose maximum it waits for or waited for (``LIMITED``, ``RELIEVED``), or in which it waits for
            room (``BLOCKED``); None in other states.
        dependent: other pods or volumes keep it off a node; only while it waits.
        refused_by_all: all nodes refused it when they were asked last, whatever ends on their cards; only while it
            waits.
        refused_at: number of changes of the cluster's room when planning refused it; :data:`NOT_REFUSED` if it did not.
        kind: the pods of this kind are refused together, and their count is the kind's; None for a pod by itself.
        displaced: its slices were taken back while it lived, and it has got no others.
        denied: the pod as it was when the API server refused its pin; None otherwise.
        told: text of the pod's condition: it lost its slices, or will not start on its node. Empty otherwise.
        last_event: kind of the last event about it, so that no event is repeated; empty before the first.
    """

    uid: PodUid
    state: PodState = PodState.OUTSIDE
    previous: PodState = PodState.OUTSIDE
    reason: Reason | None = None
    queue: QueueKey | None = None
    dependent: bool = False
    refused_by_all: bool = False
    refused_at: int = NOT_REFUSED
    kind: Hashable | None = None
    displaced: bool = False
    denied: PodInfo | None = None
    told: str = ""
    last_event: str = ""

    @property
    def waits(self) -> bool:
        """True if the pod is to get slices."""
        return self.state in WAITING


def state_of_refusal(pod: PodInfo, reason: Reason) -> PodState:
    """Returns the state of a waiting pod that planning refuses for a reason."""
    if isinstance(reason, QueueFull) and not reason.never:
        return PodState.LIMITED
    return PodState.BLOCKED if pod.is_held and waits_for_room(reason) else PodState.REFUSED


#: Most pods that left while they waited, whose age the next pod of their owner takes over. As many as a large queue
#: has; of more, the namespace with the most loses one.
REMEMBERED_AGES = 10_000
#: Most pods: the same of one namespace. One namespace cannot push out the ages of all others; of more, its owner whose
#: pods left first loses the youngest.
REMEMBERED_AGES_OF_NAMESPACE = 1_000

#: Seconds for which an age is kept. Kueue may let an evicted Workload wait for hours before it makes its pods again.
EXPIRY = 86_400.0
#: Seconds between two pods of an owner that count at most for the age of the second.
PAUSE = 60.0
#: Seconds within which a waiting pod is told so (:mod:`tessera.forecast.queue.published_reasons`).
UNTOLD = 60.0


class _Age(NamedTuple):
    """The age that a pod leaves to the next pod of its owner.

    Attributes:
        minus_seconds: the seconds for which it competed and those that it inherited, negative so that the longest sorts
            first.
        left: when it left, seconds since 1970.
        pause: the seconds of the pause after it that count at most.
    """

    minus_seconds: float
    left: float
    pause: float


class _Claim(NamedTuple):
    """A pod that inherits an age if its owner exists, and when it came, seconds since 1970."""

    pod: PodInfo
    came: float


class WaitingAges:
    """Gives each waiting pod the time from which its age counts, as :attr:`PodInfo.created`. The older pod goes first.

    Who creates a pod could make it long before its turn, and have an age when it matters. So only the time counts in
    which a pod could have been placed:

    - An age begins when the last gate of others is gone, or with the pod if it has none.
    - While no node could take the pod by its rules, or its gang is incomplete, its age stands still.
    - Kueue deletes a pod that is not ready in time (``waitForPodsReady``), also one that waits at our gate; an eviction
      by a person does the same. Its controller makes another pod at once, which has the age of the pod before it: the
      time for which that one competed, and the pause between them up to :data:`PAUSE`, and up to the time for which
      that one itself competed. The oldest age goes first. A pod that asks for something else, or whose owner is of a
      kind that makes no pods, inherits nothing.

    Owner references are written by tenants. So a pod inherits only once its owner was found to exist
    (:attr:`unknown_owners`), an owner counts in its namespace only, and a namespace has a bound of its own. An age that
    nobody inherits expires.

    The pod's condition ``tessera.dev/SlicePromised``, where tenants cannot write, keeps the age for a new controller.
    The age of a pod without it, which is older than :data:`UNTOLD`, begins anew: it stood still. Ages that nobody has
    inherited yet are only in memory.

    Attributes:
        unknown_owners: by owner, of which somebody should ask the API server if it exists, its living pods that inherit
            then, in the order in which they came; none is empty.
    """

    def __init__(self) -> None:
        #: By living pod, the time from which its age counts, if that is not its creation.
        self._since: dict[PodUid, str] = {}
        #: Pods that do not compete, and the time up to which that is counted, seconds since 1970.
        self._idle: dict[PodUid, float] = {}
        #: Living pods that gates of others hold.
        self._gated: set[PodUid] = set()
        #: Seconds that living pods inherited.
        self._inherited: dict[PodUid, float] = {}
        self.unknown_owners: dict[Owner, dict[PodUid, _Claim]] = {}
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
        if pod.is_held and pod.earlier_gates:
            self._gated.add(pod.uid)
            return pod
        if pod.uid in self._gated:
            self._gated.discard(pod.uid)
            self._begin(pod, _earliest(now, pod))
            self._claim(pod, now)
        elif not known and pod.is_held and not pod.terminating:
            self._begin(pod, pod.waits_since or _untold(pod, now))
            if not pod.waits_since:
                self._claim(pod, now)
        aged = self._aged(pod)
        if pod.terminating and pod.is_held and competes:
            self._leave(aged, now)
        return aged

    def forget(self, uid: PodUid, pod: PodInfo | None, now: float, *, competes: bool) -> None:
        """Takes in that a pod is gone; ``pod`` is its last state with its age, None if it was not known."""
        if pod is not None and pod.is_held and competes:
            self._leave(pod, now)
        self._since.pop(uid, None)
        self._idle.pop(uid, None)
        self._gated.discard(uid)
        self._left.discard(uid)
        self._inherited.pop(uid, None)
        if pod is not None:
            self._drop_claim(pod)

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

    def judge(self, owner: Owner, *, exists: bool) -> Sequence[PodUid]:
        """Takes in if an owner exists; returns its pods that have another age now."""
        claims = self.unknown_owners.pop(owner, {})
        return [uid for uid, claim in claims.items() if exists and self._inherit(claim)]

    def _claim(self, pod: PodInfo, now: float) -> None:
        if pod.maker and _request(pod) in self._ages.get(pod.namespace, {}):
            self.unknown_owners.setdefault(_owner_of(pod), {})[pod.uid] = _Claim(pod, now)

    def _drop_claim(self, pod: PodInfo) -> None:
        claims = self.unknown_owners.get(_owner_of(pod), {})
        if claims.pop(pod.uid, None) is not None and not claims:
            del self.unknown_owners[_owner_of(pod)]

    def _inherit(self, claim: _Claim) -> bool:
        """Gives a pod the oldest age that its owner's pods have left; returns false if there is none."""
        pod, came = claim
        key = _request(pod)
        ages = [age for age in self._take(pod.namespace, key) if came < age.left + EXPIRY]
        found = ages.pop(0) if ages else None
        self._keep(pod.namespace, key, ages)
        if found is None:
            return False
        since = max(found.left, came - found.pause) + found.minus_seconds
        self._inherited[pod.uid] = came - since
        self._begin(pod, _date(since, pod))
        return True

    def _leave(self, pod: PodInfo, now: float) -> None:
        if not pod.maker or not pod.profiles or pod.finished or pod.uid in self._left or not now:
            return
        self._left.add(pod.uid)
        if self._counts.get(pod.namespace, 0) >= REMEMBERED_AGES_OF_NAMESPACE:
            self._forget_first(pod.namespace)
        if self._count >= REMEMBERED_AGES:
            self._forget_first(max(self._counts, key=lambda namespace: self._counts[namespace]))
        key = _request(pod)
        seconds = max(0.0, now - parse_time_or_zero(pod.created))
        age = _Age(-seconds, now, min(PAUSE, max(0.0, seconds - self._inherited.get(pod.uid, 0.0))))
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


def _owner_of(pod: PodInfo) -> Owner:
    return Owner(pod.namespace, pod.maker, pod.owner)


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
