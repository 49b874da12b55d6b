"""Spaces the writes of an object that can wait, by how long the server takes.

An API server under load answers slowly, and the cost of a write of a large object hardly depends on how much of it
changes. So a writer that gathers changes leaves the object alone for a multiple of the time that the last write took:
a fast server is asked at once, a slow one less often and for more at a time.
"""

#: The writer is busy with one object for at most a fifth of the time. More would show states later than people notice.
_REST = 4.0
#: Seconds. A state that nobody waits for may be shown so late.
_LONGEST = 1.0
#: Seconds. An answer as quick as this comes from a server that is not busy.
_QUICK = 0.01


def rest_after(took: float) -> float:
    """Seconds until the object may be written again, after a write that took ``took`` seconds."""
    return 0.0 if took < _QUICK else min(_LONGEST, took * _REST)
