"""The log of one run of a container, as its runtime keeps it and ``kubectl logs`` reads it.

Lines carry the time at which they were written. Kubelet starts a new file after 10 MiB and shows only the newest one
(``containerLogMaxSize``); all nodes of a lab are on one machine, so a log keeps a tenth of that.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import NamedTuple

#: Characters of text that one run keeps; the oldest lines go first, the newest always stays.
LOG_TEXT = 2**20


class LogLine(NamedTuple):
    """A line, and when it was written, seconds since 1970."""

    at: float
    text: str


class ContainerLog:
    """One run's log.

    Args:
        now: the node's time, seconds since 1970.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._lines: deque[LogLine] = deque()
        self._size = 0
        self._written = 0
        self._ended = False
        self._grown = asyncio.Event()

    def add(self, text: str) -> None:
        """Adds a line, or several where the text has line ends."""
        for line in text.split("\n"):
            self._lines.append(LogLine(self._now(), line))
            self._size += len(line)
            self._written += 1
        while self._size > LOG_TEXT and len(self._lines) > 1:
            self._size -= len(self._lines.popleft().text)
        self._grown.set()

    def end(self) -> None:
        """The run is over: nothing follows."""
        self._ended = True
        self._grown.set()

    def lines(self) -> Sequence[LogLine]:
        """The lines that it keeps, oldest first."""
        return tuple(self._lines)

    def texts(self) -> list[str]:
        """The same without their times."""
        return [line.text for line in self._lines]

    async def follow(self) -> AsyncIterator[Sequence[LogLine]]:
        """Yields all lines that come from now on, until the run ends; a slow reader misses what is no longer kept."""
        seen = self._written
        while True:
            fresh = min(self._written - seen, len(self._lines))
            seen = self._written
            if fresh:
                yield self.lines()[-fresh:]
            elif self._ended:
                return
            else:
                self._grown.clear()
                await self._grown.wait()
