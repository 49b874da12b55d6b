"""Requests that fail or are slow: the pauses between them, and the two lines in the log for an outage.

Pauses after failures grow and are jittered, so that many clients do not return at the same moment.

An API server under load answers slowly, and the cost of writing a large object hardly depends on how much of it
changes. So a writer of states that nobody waits for pauses for a multiple of the duration of its last write: it writes
to a fast server at once, and to a slow one less often and more at a time. A write that a pod waits for never pauses:
changes that come while one is on its way share the next.
"""

import logging
import random

from tessera.clock import Clock
from tessera.kube.client.errors import ApiError, BrokenAnswer
from tessera.text import age, one_line

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


#: Seconds without a failure after which an answer ends the outage. A server that answers some requests and not others
#: would else be told to fail and to answer again with each of them.
QUIET = 10.0
#: From this HTTP status on, the server itself is in trouble; 429 means that it is overloaded.
_SERVER_ERRORS, _OVERLOADED = 500, 429


class OutageLog:
    """Joins the failed requests of one outage.

    Args:
        log: the logger of the requests' sender.
        what: the requests, ``writes of slices``.
        clock: the time.
    """

    def __init__(self, log: logging.Logger, what: str, clock: Clock) -> None:
        self._log = log
        self._what = what
        self._clock = clock
        #: Requests that have failed in the present outage; 0 while there is none.
        self._failed = 0
        #: Monotonic times of the first and the last of them.
        self._began = self._last = 0.0

    def note_failure(self, error: Exception) -> bool:
        """Takes in that a request failed.

        Returns:
            True if the server was in trouble, which is logged here. False if it answered, and refused this request.
        """
        if isinstance(error, ApiError) and not _is_trouble(error):
            self.note_answer()
            return False
        self._last = self._clock.monotonic()
        if not self._failed:
            self._began = self._last
            self._log.warning("%s fail, further failures are counted until they succeed: %s", self._what, _text(error))
        self._failed += 1
        return True

    def note_answer(self) -> None:
        """Takes in that the server answered a request."""
        now = self._clock.monotonic()
        if self._failed and now >= self._last + QUIET:
            self._log.warning(
                "%s succeed again: %d failed in %s", self._what, self._failed, age(self._last - self._began)
            )
            self._failed = 0


def _is_trouble(error: ApiError) -> bool:
    return not isinstance(error, BrokenAnswer) and (error.code >= _SERVER_ERRORS or error.code == _OVERLOADED)


def _text(error: Exception) -> str:
    return one_line(str(error) or type(error).__name__)
