"""The queue in words, for the condition of a pod, for Events and for ``tessera why``."""

from itertools import dropwhile, takewhile

from tessera.clock import rfc3339
from tessera.forecast.queue_page import DEADLINE, HISTORY, RATE, ExpectedStart, QueuedPod
from tessera.text import count_noun

#: What a forecast rests on, as the end of a sentence.
_BASES = {
    DEADLINE: "by the deadlines of the pods before it",
    HISTORY: "from how long such pods ran before",
    RATE: "from the starts of pods that had waited, in the last hour",
}
#: The same where past waits are a part of it.
_WAITS = "from how long such pods ran and waited before"


#: Beginnings of the sentences about position, and about start.
_POSITION, _START = ("Position ", "No other pod "), ("Its start ", "Starts ")


def queued_text(row: QueuedPod) -> str:
    """Position, start and reason of a pod in sentences; names no other pod."""
    parts = [position_text(row), start_text(row.start), row.detail]
    return ". ".join(part[0].upper() + part[1:] for part in parts if part)


def place_of_text(text: str, *, position: bool = True) -> str:
    """The sentences of :func:`queued_text` about position, if that is wanted, and start, without the reason."""
    place = takewhile(lambda each: each.startswith((*_POSITION, *_START)), text.split(". "))
    return ". ".join(each for each in place if position or not each.startswith(_POSITION))


def reason_of_text(text: str) -> str:
    """The reason in :func:`queued_text`: all that follows the sentences about position and start."""
    return ". ".join(dropwhile(lambda each: each.startswith((*_POSITION, *_START)), text.split(". ")))


def position_text(row: QueuedPod) -> str:
    """``position 2 of 5 that wait for the same room``; empty for a pod without a position."""
    if not row.position:
        return ""
    return f"position {row.position} of {row.of} for the same room" if row.of > 1 else "no other pod waits for its room"


def start_text(start: ExpectedStart) -> str:
    """When a pod starts, in absolute times, which stay true while time passes."""
    if start.p50 is None:
        return f"its start is unknown: {count_noun(start.starts, 'pod')} with such slices started in the last hour"
    basis = _WAITS if start.waits else _BASES.get(start.basis, "")
    if start.p90 is None:
        return f"starts after {_minute(start.p50)}, {basis}"
    first, last = _minute(start.p50), _minute(start.p90)
    if first == last:
        return f"starts about {first}, {basis}"
    return f"starts between {first} and {last}, {basis}"


def _minute(time: float) -> str:
    """``2026-11-24 15:04 UTC``, the minute that has begun or begins next."""
    return f"{rfc3339(60 * round(time / 60))[:16].replace('T', ' ')} UTC"
