"""What has failed on a card, where, how often, and when it is worth another try. Pure: ``now`` is an argument."""

from collections.abc import Collection, Iterator, Sequence

import msgspec

from tessera.agent.mig_config.events import (
    Call,
    CallFailed,
    CallFailure,
    CreateCi,
    DestroyGi,
    DeviceUser,
    EvictionAnswered,
    InstancePlace,
    ReleaseCard,
    Reset,
    SetMigMode,
)
from tessera.api.names import PodUid

#: First and longest delay in seconds before a failed call is tried again.
RETRY_FIRST, RETRY_MOST = 0.5, 60.0
#: The same while something still uses what must go, or a process outlives its pod: mostly a matter of moments.
BUSY_FIRST, BUSY_MOST = 0.1, 5.0
#: Tries after which a call that goes on failing is called a failure, some two seconds.
FAILURE_ATTEMPTS = 3

#: What a failed call is remembered under: where, or the card as a whole.
Key = InstancePlace | type[SetMigMode] | type[Reset]


class FailedCall(msgspec.Struct, frozen=True):
    """What failed at a place, or of the card as a whole.

    Attributes:
        tries: how often in a row.
        until: when the next try is due.
        text: why, for people.
        failure: the kind of it.
        undo: a compute instance could not be made, so its GPU instance goes.
    """

    attempts: int
    retry_at: float
    text: str
    failure: CallFailure
    discard: bool = False

    def is_failure(self, *, in_use: bool) -> bool:
        """Whether it is a failure by now; that something is in use is none as long as it is known who uses it."""
        return self.attempts >= FAILURE_ATTEMPTS and not (in_use and self.failure is CallFailure.BUSY)


class CallRetries:
    """The troubles of one card."""

    def __init__(self) -> None:
        self._troubles: dict[Key, FailedCall] = {}

    def record(self, fact: CallFailed) -> None:
        """Notes a failed call."""
        key = _key(fact.call)
        if key is None:
            return
        before = self._troubles.get(key)
        tries = before.attempts + 1 if before else 1
        first, most = (BUSY_FIRST, BUSY_MOST) if fact.failure is CallFailure.BUSY else (RETRY_FIRST, RETRY_MOST)
        undo = isinstance(fact.call, CreateCi) or bool(
            before and before.discard and not isinstance(fact.call, DestroyGi)
        )
        self._troubles[key] = FailedCall(tries, fact.now + backoff(first, most, tries), fact.text, fact.failure, undo)

    def allows(self, call: Call | ReleaseCard, now: float) -> bool:
        """Whether a call may be made now."""
        key = _key(call)
        return key is None or key not in self._troubles or self._troubles[key].retry_at <= now

    def must_discard(self, place: InstancePlace) -> bool:
        """Whether the GPU instance at a place goes because its compute instance could not be made."""
        return place in self._troubles and self._troubles[place].discard

    def most_attempted(self) -> tuple[Key, FailedCall] | None:
        """The one that was tried most often."""
        return max(self._troubles.items(), key=lambda item: item[1].attempts, default=None)

    def retry_times(self) -> Iterator[float]:
        """When next tries are due."""
        return (each.retry_at for each in self._troubles.values())

    def prune(self, open_places: frozenset[InstancePlace] | None, present: frozenset[InstancePlace]) -> None:
        """Drops the troubles of what stands as it shall.

        Args:
            open_places: where something is left to do; ``None`` to keep all: what failed before a reset may fail
                after it.
            present: where an instance is; what is gone need not be taken down.
        """
        self._troubles = {
            key: trouble if key in present else msgspec.structs.replace(trouble, discard=False)
            for key, trouble in self._troubles.items()
            if open_places is None or key in open_places
        }

    def clear(self) -> None:
        """Forgets all: everything is tried at once."""
        self._troubles.clear()


def describe_call(call: Call | ReleaseCard) -> str:
    """A call, for people."""
    where = (
        "" if isinstance(call, SetMigMode | Reset | ReleaseCard) else f" of {call.place.profile} at {call.place.start}"
    )
    return f"{type(call).__name__}{where}"


def backoff(first: float, most: float, tries: int) -> float:
    """Doubling delays in seconds."""
    return min(most, first * 2.0 ** min(tries - 1, 16))


def _key(call: Call | ReleaseCard) -> Key | None:
    if isinstance(call, SetMigMode | Reset):
        return type(call)
    return None if isinstance(call, ReleaseCard) else call.place


#: Seconds after which an evicted pod that is still there is evicted again; longer than most grace periods.
EVICT_AGAIN = 60.0
#: First and longest delay in seconds after a refused eviction.
REFUSED_FIRST, REFUSED_MOST = 2.0, 60.0


class _Asked(msgspec.Struct, frozen=True):
    """How often it was refused, when it may be asked for again, why it was refused last."""

    refusals: int
    until: float
    refusal: str | None


class EvictionRetries:
    """The evictions asked for on behalf of one card."""

    def __init__(self) -> None:
        self._asked: dict[PodUid, _Asked] = {}

    def record(self, fact: EvictionAnswered) -> None:
        """Notes an answer."""
        before = self._asked.get(fact.pod)
        refusals = 0 if fact.refusal is None else (before.refusals if before else 0) + 1
        wait = EVICT_AGAIN if fact.refusal is None else backoff(REFUSED_FIRST, REFUSED_MOST, refusals)
        self._asked[fact.pod] = _Asked(refusals, fact.now + wait, fact.refusal)

    def prune(self, pods: Collection[PodUid]) -> None:
        """Forgets the pods that are no longer there."""
        self._asked = {pod: asked for pod, asked in self._asked.items() if pod in pods}

    def clear(self) -> None:
        """Forgets all."""
        self._asked.clear()

    def due(self, tenants: Sequence[DeviceUser], now: float) -> tuple[DeviceUser, ...]:
        """Those of the tenants that are to be asked now; who is just being admitted cannot be asked yet."""
        known = self._asked
        return tuple(each for each in tenants if each.pod and (each.pod not in known or known[each.pod].until <= now))

    def retry_times(self) -> Iterator[float]:
        """When pods may be asked again."""
        return (each.until for each in self._asked.values())

    def describe(self, tenant: DeviceUser) -> str:
        """What was answered for a tenant, to be put behind its name."""
        asked = self._asked.get(tenant.pod)
        if asked is None:
            return ""
        return " (evicted)" if asked.refusal is None else f" (not evicted yet: {asked.refusal})"
