"""Retries of calls and evictions of one card: keys of calls, delays, and when a failure is reported. Pure.

:mod:`tessera.agent.base.call_retries` counts the failed calls. ``now`` is an argument everywhere, monotonic seconds.
"""

from collections.abc import Collection, Iterator, Sequence
from enum import Enum

import msgspec

from tessera.agent.base.call_retries import CallFailure, CallRetries, FailedCall, RetryDelays
from tessera.agent.mig_config.events import (
    Call,
    EvictionAnswered,
    InstancePlace,
    ReleaseCard,
    Reset,
    SetMigMode,
    UserPod,
)
from tessera.api.names import PodUid

#: Delays before a failed call is tried again.
REFUSED_DELAYS = RetryDelays(first=0.5, most=60.0)
#: The same while a process still uses the card. A process mostly outlives its pod by moments only.
BUSY_DELAYS = RetryDelays(first=0.1, most=5.0)
#: Attempts after which a call that keeps failing is reported as a failure; some two seconds.
FAILURE_ATTEMPTS = 3
#: Seconds after which an evicted pod that is still there is evicted again; longer than most grace periods.
EVICT_AGAIN = 60.0
#: Delays after a refused eviction.
EVICTION_DELAYS = RetryDelays(first=2.0, most=60.0)


class CardCall(Enum):
    """A call for the card as a whole."""

    SET_MIG_MODE = "set-mig-mode"
    RESET = "reset"


#: Key of a failed call: one place, or the card as a whole.
CallKey = InstancePlace | CardCall


def call_retries() -> CallRetries[CallKey]:
    """Retries of the calls of one card, none failed."""
    return CallRetries(refused=REFUSED_DELAYS, busy=BUSY_DELAYS)


def call_key(call: Call) -> CallKey:
    """The key of a call."""
    match call:
        case SetMigMode():
            return CardCall.SET_MIG_MODE
        case Reset():
            return CardCall.RESET
        case _:
            return call.place


def is_reported(failed: FailedCall, *, in_use: bool) -> bool:
    """True if a call must be reported as a failure now. A busy device is no failure while its users are known."""
    return failed.attempts >= FAILURE_ATTEMPTS and not (in_use and failed.failure is CallFailure.BUSY)


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
        wait = EVICT_AGAIN if event.refusal is None else EVICTION_DELAYS.after(refusals)
        self._attempts[event.pod] = _EvictionAttempt(refusals, event.now + wait, event.refusal)

    def prune(self, pods: Collection[PodUid]) -> None:
        """Forgets the pods that are not among these."""
        self._attempts = {pod: attempt for pod, attempt in self._attempts.items() if pod in pods}

    def clear(self) -> None:
        """Forgets all evictions."""
        self._attempts.clear()

    def pods_to_evict(self, users: Sequence[UserPod], now: float) -> tuple[UserPod, ...]:
        """The pods to evict now. A pod that kubelet is just admitting is still unknown and cannot be evicted."""
        return tuple(each for each in users if each.pod and self._is_due(each.pod, now))

    def _is_due(self, pod: PodUid, now: float) -> bool:
        attempt = self._attempts.get(pod)
        return attempt is None or attempt.retry_at <= now

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
