"""Counts failed calls that change a card, and gives the time of the next attempt. Pure.

A call that fails is tried again after a delay that doubles with each failure in a row. A compute instance that cannot
be created leaves its GPU instance half made; that GPU instance must go before the next attempt.

``now`` is an argument everywhere, monotonic seconds.
"""

from collections.abc import Hashable, Iterator
from enum import Enum
from typing import Generic, TypeVar

import msgspec

K = TypeVar("K", bound=Hashable)


class CallFailure(Enum):
    """Reason for a failed call, as far as the next step depends on it."""

    #: A pod or process still uses the card or instance.
    BUSY = "busy"
    #: Any other reason.
    REFUSED = "refused"
    #: The card must be reset before it works again.
    NEEDS_RESET = "needs-reset"


class RetryDelays(msgspec.Struct, frozen=True):
    """Delays between attempts in seconds: ``first``, doubled with each further attempt, at most ``most``."""

    first: float
    most: float

    def after(self, attempts: int) -> float:
        """The delay after so many failed attempts in a row, 1 or more."""
        return min(self.most, self.first * 2.0 ** min(attempts - 1, 16))


class FailedCall(msgspec.Struct, frozen=True):
    """A call that failed.

    Attributes:
        attempts: failures in a row.
        retry_at: time at which the next attempt is due.
        text: why the call failed, for people.
        failure: the kind of failure.
        half_made: true if a compute instance could not be created, so that its GPU instance must be destroyed first.
        undo_failed: true if the last call destroyed that GPU instance, and failed.
    """

    attempts: int
    retry_at: float
    text: str
    failure: CallFailure
    half_made: bool = False
    undo_failed: bool = False


class CallRetries(Generic[K]):
    """The failed calls of one card, or of all cards of a node.

    Args:
        refused: delays after a failure.
        busy: delays while a process still uses the device; it ends soon after its pod.
    """

    def __init__(self, refused: RetryDelays, busy: RetryDelays) -> None:
        self._refused = refused
        self._busy = busy
        #: By key, the calls that failed and are still to be made. The caller drops those that are no longer needed.
        self._failed: dict[K, FailedCall] = {}

    def record(
        self, key: K, failure: CallFailure, text: str, now: float, *, half_made: bool = False, undo_failed: bool = False
    ) -> FailedCall:
        """Counts a failed call.

        Args:
            key: the place of the call on its card, or its kind.
            failure: the kind of failure.
            text: why it failed, for people.
            now: time of the failure.
            half_made: true if the call created a compute instance.
            undo_failed: true if the call destroyed a GPU instance.
        """
        before = self._failed.get(key)
        attempts = before.attempts + 1 if before is not None else 1
        delays = self._busy if failure is CallFailure.BUSY else self._refused
        failed = self._failed[key] = FailedCall(
            attempts=attempts,
            retry_at=now + delays.after(attempts),
            text=text,
            failure=failure,
            half_made=half_made or (before is not None and before.half_made),
            undo_failed=undo_failed,
        )
        return failed

    def last_failure(self, key: K) -> FailedCall | None:
        """The last failure of a call; ``None`` if it did not fail."""
        return self._failed.get(key)

    def is_due(self, key: K, now: float) -> bool:
        """True if the next attempt may be made now."""
        failed = self._failed.get(key)
        return failed is None or failed.retry_at <= now

    def is_half_made(self, key: K) -> bool:
        """True if the GPU instance there must go because its compute instance could not be created."""
        failed = self._failed.get(key)
        return failed is not None and failed.half_made

    def can_undo(self, key: K) -> bool:
        """True if the GPU instance there must go, and no attempt to destroy it has just failed."""
        failed = self._failed.get(key)
        return failed is not None and failed.half_made and not failed.undo_failed

    def retry_now(self, key: K) -> None:
        """Makes the next attempt due at once, and counts anew."""
        failed = self._failed.get(key)
        if failed is not None:
            self._failed[key] = msgspec.structs.replace(failed, attempts=0, retry_at=0.0)

    def forget_instance(self, key: K) -> None:
        """Takes in that there is no GPU instance any longer, so none is half made."""
        failed = self._failed.get(key)
        if failed is not None:
            self._failed[key] = msgspec.structs.replace(failed, half_made=False, undo_failed=False)

    def drop(self, key: K) -> None:
        """Forgets the failures of a call that succeeded or is no longer needed."""
        self._failed.pop(key, None)

    def clear(self) -> None:
        """Forgets all failures, so that everything is tried at once."""
        self._failed.clear()

    def failed_keys(self) -> tuple[K, ...]:
        """The keys of all failed calls."""
        return tuple(self._failed)

    def retry_times(self) -> Iterator[tuple[K, float]]:
        """By key, the time at which the next attempt is due."""
        return ((key, failed.retry_at) for key, failed in self._failed.items())

    def most_frequent_failure(self) -> tuple[K, FailedCall] | None:
        """The call that failed most often in a row."""
        return max(self._failed.items(), key=lambda item: item[1].attempts, default=None)
