"""Spaces the writes of one object by how long the server takes to answer.

An API server under load answers slowly, and the cost of writing a large object hardly depends on how much of it
changes. So a writer that gathers changes leaves the object alone for a multiple of the duration of its last write: it
writes to a fast server at once, and to a slow one less often and more at a time.
"""

#: Multiple for a write that a user or pod waits for: the writer is busy half of the time.
AWAITED_WRITE = 1.0
#: Multiple for a state without a waiting reader: the writer is busy a fifth of the time. People notice no more delay.
STATE_WRITE = 4.0
#: Longest pause, seconds: a state without a waiting reader may be this late.
_LONGEST = 1.0
#: A server that answers within this time, in seconds, is not busy.
_QUICK = 0.01


def pause_after_write(write_seconds: float, multiple: float) -> float:
    """Seconds until the object may be written again.

    Args:
        write_seconds: how long the last write took.
        multiple: pause as a multiple of it, for a slow server; :data:`AWAITED_WRITE` or :data:`STATE_WRITE`.
    """
    return 0.0 if write_seconds < _QUICK else min(_LONGEST, write_seconds * multiple)
