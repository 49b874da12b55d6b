"""Retries of calls and evictions of one card: keys of calls, delays, and when a failure is reported. Pure.

:mod:`tessera.agent.base.call_retries` counts the failed calls. ``now`` is an argument everywhere, monotonic seconds.
"""

from collections.abc import Collection, Iterator, Sequence
from enum import Enum

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


class EvictionRetries:
    """The evictions requested for one card. Each pod is either among the refused or among the accepted ones."""

    def __init__(self) -> None:
        #: Evictions that the API server refused. Only of pods that the last list of users has.
        self._refused: CallRetries[PodUid] = CallRetries(refused=EVICTION_DELAYS, busy=EVICTION_DELAYS)
        #: By pod whose eviction was accepted, the time of the next request. Only pods that the last list of users has.
        self._accepted: dict[PodUid, float] = {}

    def record(self, event: EvictionAnswered) -> None:
        """Counts an answer of the API server."""
        if event.refusal is None:
            self._refused.drop(event.pod)
            self._accepted[event.pod] = event.now + EVICT_AGAIN
        else:
            self._accepted.pop(event.pod, None)
            self._refused.record(event.pod, CallFailure.REFUSED, event.refusal, event.now)

    def prune(self, pods: Collection[PodUid]) -> None:
        """Forgets the pods that are not among these."""
        for pod in self._refused.failed_keys():
            if pod not in pods:
                self._refused.drop(pod)
        self._accepted = {pod: at for pod, at in self._accepted.items() if pod in pods}

    def clear(self) -> None:
        """Forgets all evictions."""
        self._refused.clear()
        self._accepted.clear()

    def pods_to_evict(self, users: Sequence[UserPod], now: float) -> tuple[UserPod, ...]:
        """The pods to evict now. A pod that kubelet is just admitting is still unknown and cannot be evicted."""
        return tuple(each for each in users if each.pod and self._is_due(each.pod, now))

    def _is_due(self, pod: PodUid, now: float) -> bool:
        return self._refused.is_due(pod, now) and self._accepted.get(pod, now) <= now

    def retry_times(self) -> Iterator[float]:
        """The times at which the next evictions are due."""
        yield from self._accepted.values()
        yield from (at for _, at in self._refused.retry_times())

    def describe(self, user: UserPod) -> str:
        """The last answer about a pod, to follow its name in a text; empty if its eviction was not requested."""
        if user.pod in self._accepted:
            return " (evicted)"
        refused = self._refused.last_failure(user.pod)
        return "" if refused is None else f" (not evicted yet: {refused.text})"


def describe_call(call: Call | ReleaseCard) -> str:
    """The name of a call and its place, for people."""
    where = ""
    if not isinstance(call, SetMigMode | Reset | ReleaseCard):
        where = f" of {call.place.profile} at {call.place.start}"
    return f"{type(call).__name__}{where}"
