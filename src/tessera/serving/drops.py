"""Counts the connections that a port cuts off, and logs them in one line a minute: strangers must not fill a log."""

import asyncio
import logging
from collections import Counter

from aiohttp.http_exceptions import HttpProcessingError

_log = logging.getLogger(__name__)

#: Seconds between two log lines about connections that were cut off.
_REPORT = 60.0


class Drops:
    """Counts cut-off connections and bodies, and logs at most one line a minute."""

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str) -> None:
        self._loop = loop
        self._name = name
        self._counts: Counter[str] = Counter()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, why: str) -> None:
        """Counts one; logs the first after a quiet time at once."""
        self._counts[why] += 1
        if self._timer is None:
            self._report()

    def _report(self) -> None:
        self._timer = None
        if self._counts:
            counts = ", ".join(f"{count} {why}" for why, count in self._counts.most_common())
            _log.warning("%s: connections cut off: %s", self._name, counts)
            self._counts.clear()
            self._timer = self._loop.call_later(_REPORT, self._report)

    def close(self) -> None:
        """Logs the rest."""
        if self._timer is not None:
            self._timer.cancel()
        self._report()
        if self._timer is not None:
            self._timer.cancel()


class MalformedRequests(logging.Filter):
    """Counts each malformed or aborted request that aiohttp would log with a traceback."""

    def __init__(self, drops: Drops) -> None:
        super().__init__()
        self._drops = drops

    def filter(self, record: logging.LogRecord) -> bool:
        """See :meth:`logging.Filter.filter`."""
        error = record.exc_info[1] if record.exc_info else None
        match error:
            case HttpProcessingError():
                self._drops.add("with what is no HTTP")
            case ConnectionError():
                self._drops.add("gone before the body had come")
            case _:
                return True
        return False
