"""The queue in words, for the condition of a pod, for Events and for ``tessera why``.

The reason of the condition is the case of the pod's reason, in the form of a condition: ``CardHeldBack``.
"""

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


def queued_text(row: QueuedPod) -> str:
    """Reason, position and start of a pod in sentences; names no other pod."""
    parts = [row.detail, position_text(row), start_text(row.start)]
    return ". ".join(part[0].upper() + part[1:] for part in parts if part)


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


def condition_reason(case: str) -> str:
    """``CardHeldBack`` for ``card-held-back``."""
    return "".join(part.capitalize() for part in case.split("-")) or "Waiting"


def case_of(reason: str) -> str:
    """``card-held-back`` for ``CardHeldBack``."""
    return "".join(f"-{each.lower()}" if each.isupper() else each for each in reason).lstrip("-")
