"""The only source of time.

Logic takes a :class:`Clock` and never asks the operating system or asyncio itself. In production the clock is
:class:`SystemClock`. Under the lab's virtual event loop it is :class:`LoopClock`: every timer of asyncio, ``timeout``
and ``call_later`` included, then runs on virtual time, so minutes replay in milliseconds with the production code
unchanged.
"""

import asyncio
import contextlib
import math
import time
from datetime import UTC, datetime
from functools import lru_cache
from typing import Protocol


class Clock(Protocol):
    """The clock that logic uses."""

    def now(self) -> float:
        """Seconds since 1970-01-01 UTC; for times that are shown or stored."""
        ...

    def monotonic(self) -> float:
        """Seconds from an arbitrary start that never run backwards; for measuring and for deadlines."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Resumes after ``seconds`` of this clock's time."""
        ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> float:
        """Seconds since 1970-01-01 UTC."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds from an arbitrary start."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Resumes after ``seconds`` of real time."""
        await asyncio.sleep(seconds)


class LoopClock:
    """The running event loop's time, shown as dates from ``epoch`` on.

    Args:
        epoch: the date of the loop's time zero, in seconds since 1970.
    """

    def __init__(self, epoch: float) -> None:
        self._epoch = epoch

    def now(self) -> float:
        """Seconds since 1970-01-01 UTC on the loop's time."""
        return self._epoch + self.monotonic()

    def monotonic(self) -> float:
        """The loop's time in seconds."""
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        """Resumes after ``seconds`` of the loop's time."""
        await asyncio.sleep(seconds)


async def until_set(event: asyncio.Event, at_most: float | None) -> None:
    """Resumes once ``event`` is set, or after ``at_most`` seconds of the loop's time; None sets no limit.

    A limit above 0 ends at a later time, also if the sum would be rounded to the present time: whoever waits for a
    moment again and again comes to it, also where time passes only by waiting.
    """
    now = asyncio.get_running_loop().time()
    end = None if at_most is None else now if at_most <= 0 else max(now + at_most, math.nextafter(now, math.inf))
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout_at(end):
            await event.wait()


#: The first and the last second that have a text, seconds since 1970.
_FIRST, _LAST = -62135596800, 253402300799


def rfc3339(seconds: float) -> str:
    """A point in time as Kubernetes' ``metav1.Time``: UTC, whole seconds, ``2026-01-31T12:00:00Z``.

    A time outside of the years 1 to 9999, which other writers may set, becomes the first or last second of them.
    """
    return _whole_second(math.floor(min(max(seconds, _FIRST), _LAST)))


@lru_cache(maxsize=256)
def _whole_second(seconds: int) -> str:
    """Remembers texts, since one second's text goes into many objects."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def rfc3339_micro(seconds: float) -> str:
    """A point in time as Kubernetes' ``metav1.MicroTime``: UTC with six decimals, as Leases store it."""
    return datetime.fromtimestamp(min(max(seconds, _FIRST), _LAST), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def parse_rfc3339(text: str) -> float:
    """Seconds since 1970 of a ``metav1.Time`` or ``metav1.MicroTime``.

    Raises:
        ValueError: the text is not an RFC 3339 date.
    """
    try:
        return datetime.fromisoformat(text).timestamp()
    except OverflowError as error:  # a date without a zone, at the end of time
        raise ValueError(f"{text}: {error}") from None


def parse_time_or_zero(text: str | None) -> float:
    """Reads a time as :func:`parse_rfc3339` does; 0 for no text, or for one of another form."""
    try:
        return parse_rfc3339(text) if text else 0.0
    except ValueError:
        return 0.0
