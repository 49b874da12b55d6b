"""Counts failed calls and evictions of one card, and gives the time at which each is due again. Pure.

``now`` is an argument everywhere, monotonic seconds.
"""

from collections.abc import Collection, Iterator, Sequence

import msgspec

from tessera.agent.mig_config.events import (
    Call,
    CallFailed,
    CallFailure,
    CreateCi,
    DestroyGi,
    EvictionAnswered,
    InstancePlace,
    ReleaseCard,
    Reset,
    SetMigMode,
    UserPod,
)
from tessera.api.names import PodUid

#: First and longest delay in seconds before a failed call is tried again.
RETRY_FIRST, RETRY_MOST = 0.5, 60.0
#: The same while a process still uses the card. A process mostly outlives its pod by moments only.
BUSY_FIRST, BUSY_MOST = 0.1, 5.0
#: Attempts after which a call that keeps failing is reported as a failure; some two seconds.
FAILURE_ATTEMPTS = 3
#: Seconds after which an evicted pod that is still there is evicted again; longer than most grace periods.
EVICT_AGAIN = 60.0
#: First and longest delay in seconds after a refused eviction.
REFUSED_FIRST, REFUSED_MOST = 2.0, 60.0

#: Key of a failed call: one place, or the card as a whole.
CallKey = InstancePlace | type[SetMigMode] | type[Reset]


class FailedCall(msgspec.Struct, frozen=True):
    """A call that failed at a place or for the card as a whole.

    Attributes:
        attempts: failures in a row.
        retry_at: time at which the next attempt is due.
        text: why the call failed, for people.
        failure: the kind of failure.
        discard: true if a compute instance could not be created, so that its GPU instance must be destroyed.
    """

    attempts: int
    retry_at: float
    text: str
    failure: CallFailure
    discard: bool = False

    def is_failure(self, *, in_use: bool) -> bool:
        """True if the call must be reported as a failure now. A busy device is no failure while its users are known."""
        return self.attempts >= FAILURE_ATTEMPTS and not (in_use and self.failure is CallFailure.BUSY)


class CallRetries:
    """The failed calls of one card."""

    def __init__(self) -> None:
        #: Failures by place or kind of call. Each call is still to be made; :meth:`prune` drops the others.
        self._failed: dict[CallKey, FailedCall] = {}

    def record(self, event: CallFailed) -> None:
        """Counts a failed call."""
        key = _key(event.call)
        if key is None:
            return
        before = self._failed.get(key)
        attempts = before.attempts + 1 if before else 1
        first, most = (BUSY_FIRST, BUSY_MOST) if event.failure is CallFailure.BUSY else (RETRY_FIRST, RETRY_MOST)
        still_there = bool(before and before.discard and not isinstance(event.call, DestroyGi))
        discard = isinstance(event.call, CreateCi) or still_there
        retry_at = event.now + backoff(first, most, attempts)
        self._failed[key] = FailedCall(attempts, retry_at, event.text, event.failure, discard)

    def allows(self, call: Call | ReleaseCard, now: float) -> bool:
        """True if a call may be made now."""
        key = _key(call)
        return key is None or key not in self._failed or self._failed[key].retry_at <= now

    def must_discard(self, place: InstancePlace) -> bool:
        """True if the GPU instance at a place must go because its compute instance could not be created."""
        return place in self._failed and self._failed[place].discard

    def most_attempted(self) -> tuple[CallKey, FailedCall] | None:
        """The call that failed most often in a row."""
        return max(self._failed.items(), key=lambda item: item[1].attempts, default=None)

    def retry_times(self) -> Iterator[float]:
        """The times at which the next attempts are due."""
        return (each.retry_at for each in self._failed.values())

    def prune(self, open_places: frozenset[InstancePlace] | None, present: frozenset[InstancePlace]) -> None:
        """Drops the failed calls of places that are finished.

        Args:
            open_places: places with work left to do; ``None`` to keep all, since a call that failed before a reset
                may fail after it.
            present: places with an instance. A GPU instance that is gone need not be discarded.
        """
        self._failed = {
            key: failed if key in present else msgspec.structs.replace(failed, discard=False)
            for key, failed in self._failed.items()
            if open_places is None or key in open_places
        }

    def clear(self) -> None:
        """Forgets all failures, so that everything is tried at once."""
        self._failed.clear()


class _EvictionAttempt(msgspec.Struct, frozen=True):
    """Evictions of one pod: refusals in a row, time of the next request, reason of the last refusal, if any."""

    refusals: int
    retry_at: float
    refusal: str | None


class EvictionRetries:
    """The evictions requested for one card."""

    def __init__(self) -> None:
        #: Attempts by pod. Only pods that the last list of users has.
        self._attempts: dict[PodUid, _EvictionAttempt] = {}

    def record(self, event: EvictionAnswered) -> None:
        """Counts an answer of the API server."""
        before = self._attempts.get(event.pod)
        refusals = 0 if event.refusal is None else (before.refusals if before else 0) + 1
        wait = EVICT_AGAIN if event.refusal is None else backoff(REFUSED_FIRST, REFUSED_MOST, refusals)
        self._attempts[event.pod] = _EvictionAttempt(refusals, event.now + wait, event.refusal)

    def prune(self, pods: Collection[PodUid]) -> None:
        """Forgets the pods that are not among these."""
        self._attempts = {pod: attempt for pod, attempt in self._attempts.items() if pod in pods}

    def clear(self) -> None:
        """Forgets all evictions."""
        self._attempts.clear()

    def due(self, users: Sequence[UserPod], now: float) -> tuple[UserPod, ...]:
        """The pods to evict now. A pod that kubelet is just admitting is still unknown and cannot be evicted."""
        asked = self._attempts
        return tuple(each for each in users if each.pod and (each.pod not in asked or asked[each.pod].retry_at <= now))

    def retry_times(self) -> Iterator[float]:
        """The times at which the next evictions are due."""
        return (each.retry_at for each in self._attempts.values())

    def describe(self, user: UserPod) -> str:
        """The last answer about a pod, to follow its name in a text; empty if its eviction was not requested."""
        attempt = self._attempts.get(user.pod)
        if attempt is None:
            return ""
        return " (evicted)" if attempt.refusal is None else f" (not evicted yet: {attempt.refusal})"


def describe_call(call: Call | ReleaseCard) -> str:
    """The name of a call and its place, for people."""
    where = ""
    if not isinstance(call, SetMigMode | Reset | ReleaseCard):
        where = f" of {call.place.profile} at {call.place.start}"
    return f"{type(call).__name__}{where}"


def backoff(first: float, most: float, attempts: int) -> float:
    """The delay after so many attempts in seconds: ``first``, doubled with each further attempt, at most ``most``."""
    return min(most, first * 2.0 ** min(attempts - 1, 16))


def _key(call: Call | ReleaseCard) -> CallKey | None:
    if isinstance(call, SetMigMode | Reset):
        return type(call)
    return None if isinstance(call, ReleaseCard) else call.place
