"""Pauses between requests: after failures, and between the writes of one object.

Pauses after failures grow and are jittered, so that many clients do not return at the same moment.

An API server under load answers slowly, and the cost of writing a large object hardly depends on how much of it
changes. So a writer of states that nobody waits for pauses for a multiple of the duration of its last write: it
writes to a fast server at once, and to a slow one less often and more at a time. A write that a pod waits for never
pauses: changes that come while one is on its way share the next.
"""

import random

#: Shortest and longest pause after failures of requests, seconds.
SHORTEST = 0.2
LONGEST = 30.0


class Backoff:
    """Doubling pauses.

    Args:
        rng: makes the jitter; seeded in tests.
        shortest: lower bound of every pause, seconds.
        longest: upper bound of every pause, seconds.
    """

    def __init__(self, rng: random.Random, *, shortest: float = SHORTEST, longest: float = LONGEST) -> None:
        self._rng = rng
        self._shortest = shortest
        self._longest = longest
        self._failures = 0

    @property
    def failures(self) -> int:
        """Failures in a row."""
        return self._failures

    def reset(self) -> None:
        """Resets the count of failures after a success: the next pause is short again."""
        self._failures = 0

    def next(self) -> float:
        """Counts a failure; returns the due pause in seconds, between half of the doubled one and all of it."""
        # The exponent is capped: after a thousand failures 2**n would overflow a float.
        doubled = self._shortest * 2.0 ** min(self._failures + 1, 32)
        self._failures += 1
        return min(self._longest, self._rng.uniform(doubled / 2, doubled))


#: Pause as a multiple of the last write's duration: the writer writes at most a fifth of the time.
_MULTIPLE = 4.0
#: Longest pause, seconds: a state without a waiting reader may be this late.
_LONGEST = 1.0
#: A server that answers within this time, in seconds, is not busy.
_QUICK = 0.01


def pause_after_write(write_seconds: float) -> float:
    """Seconds until a state may be written again, after a write that took so many seconds."""
    return 0.0 if write_seconds < _QUICK else min(_LONGEST, write_seconds * _MULTIPLE)
