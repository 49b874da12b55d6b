"""Jittered pauses that grow with failures, so that many clients do not return at the same moment."""

import random

#: First and longest pause of all callers of the API server, seconds.
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
