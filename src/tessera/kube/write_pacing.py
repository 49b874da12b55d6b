"""Spaces the writes of an object that can wait, by how long the server takes.

An API server under load answers slowly, and the cost of a write of a large object hardly depends on how much of it
changes. So a writer that gathers changes leaves the object alone for a multiple of the time that the last write took:
a fast server is asked at once, a slow one less often and for more at a time.
"""

#: What somebody waits for rests as long as its last write took: the writer is busy half of the time.
WAITED_FOR = 1.0
#: A state rests longer; the writer is busy a fifth of the time. More would show states later than people notice.
STATE = 4.0
#: Seconds. A state that nobody waits for may be shown so late.
_LONGEST = 1.0
#: Seconds. An answer as quick as this comes from a server that is not busy.
_QUICK = 0.01


def rest_after(took: float, times: float) -> float:
    """Seconds until the object may be written again, after a write that took ``took`` seconds.

    Args:
        took: seconds.
        times: the rest as a multiple of it, for a slow server; :data:`WAITED_FOR` or :data:`STATE`.
    """
    return 0.0 if took < _QUICK else min(_LONGEST, took * times)
