"""Logs an outage of the API server with two lines, however many requests fail in it."""

import logging

from tessera.clock import Clock
from tessera.kube.client.errors import ApiError, BrokenAnswer
from tessera.text import age, one_line

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
