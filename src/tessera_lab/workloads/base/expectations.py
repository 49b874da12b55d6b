"""Creations and deletions that a controller requested and has not seen yet, so that it never repeats them.

A controller decides from its mirror, and the mirror is always a little behind its own writes. So before it creates or
deletes it records what it expects to see; while it expects something it does not count again. An expectation that is
not met expires after five minutes, as in ``pkg/controller/controller_utils.go``.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tessera.clock import Clock

#: Lifetime of an expectation, seconds.
GIVE_UP_AFTER = 300.0


@dataclass
class _Expected:
    creations: int = 0
    deletions: set[str] = field(default_factory=set)
    since: float = 0.0


class Expectations:
    """Expectations of one controller, by the key of the reconciled object.

    Args:
        clock: for the expiry.
        look_again: queues a key whose expectation has expired.
    """

    def __init__(self, clock: Clock, look_again: Callable[[str], None]) -> None:
        self._clock = clock
        self._look_again = look_again
        self._expected: dict[str, _Expected] = {}

    def are_met(self, key: str) -> bool:
        """True if nothing is expected (any more)."""
        expected = self._expected.get(key)
        if expected is None:
            return True
        if expected.creations > 0 or expected.deletions:
            return self._clock.monotonic() - expected.since >= GIVE_UP_AFTER
        return True

    def expect(self, key: str, *, creations: int = 0, deletions: Iterable[str] = ()) -> None:
        """Records creations and deletions (UIDs) before their requests. Replaces an expired expectation."""
        self._expected[key] = _Expected(creations, set(deletions), self._clock.monotonic())
        asyncio.get_running_loop().call_later(GIVE_UP_AFTER, self._look_again, key)

    def created(self, key: str, number: int = 1) -> None:
        """Counts creations that were seen, or failed."""
        expected = self._expected.get(key)
        if expected is not None:
            expected.creations -= number

    def deleted(self, key: str, uid: str) -> None:
        """Removes the expected deletion of a UID: the object is gone, is being deleted, or could not be deleted."""
        expected = self._expected.get(key)
        if expected is not None:
            expected.deletions.discard(uid)

    def forget(self, key: str) -> None:
        """Drops the expectations of a removed object."""
        self._expected.pop(key, None)
