"""A limit: an ``int`` that knows its unit, its subject and its reason."""

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
