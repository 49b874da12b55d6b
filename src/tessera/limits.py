"""Every bound on what others can make Tessera read, keep or compute.

Tenants, nodes and files are hostile or broken at times. Each text, count and number that comes from them is held
against a limit *before* any work is done with it. A limit stands here, with its reason, and nowhere else; the refusal
that a user reads names it, and the table in ``docs/security.md`` lists it. ``tests/docs/test_limits.py`` holds the page
to this module.

A :class:`Limit` is an ``int``, so code compares and slices with it directly.
"""

from collections.abc import Iterator
from typing import Self


class Limit(int):
    """A bound with what it bounds, its unit and the reason for its size.

    Attributes:
        unit: what is counted, in the plural: ``"bytes"``, ``"terms"``, ``"ms"``.
        bounds: what is bounded, as a reader of the security page says it.
        reason: why it is this large and not larger.
    """

    unit: str
    bounds: str
    reason: str

    def __new__(cls, value: int, unit: str, bounds: str, reason: str) -> Self:
        """Makes the limit; ``value`` is in ``unit``."""
        self = super().__new__(cls, value)
        self.unit, self.bounds, self.reason = unit, bounds, reason
        return self

    def __str__(self) -> str:
        """The bound for a message: ``at most 1,024 characters``."""
        return f"at most {int(self):,} {self.unit}"


ECHOED = Limit(
    200,
    "characters",
    "text of others that a message repeats",
    "a reader finds the mistake in less; a longer text hides the message around it",
)


STATE_FILE = Limit(
    4 * 1024 * 1024,
    "bytes",
    "a file in which an agent keeps its state",
    "the largest that an agent writes, with the devices of thousands of pods, has a tenth of it",
)
BAD_FILES = Limit(
    3,
    "files",
    "damaged state files of one name that are preserved as `*.bad`",
    "the first ones and the newest show what happened; a disk that damages every file must not fill up",
)


def all_limits() -> Iterator[tuple[str, Limit]]:
    """Name and limit of everything in this module, in its order."""
    for name, value in globals().items():
        if isinstance(value, Limit):
            yield name, value
