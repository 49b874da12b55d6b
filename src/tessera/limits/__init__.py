"""The limits on input that others choose, as a message names them, or as several modules keep them.

Tenants, nodes and files are hostile or broken at times. Each text, count and number that comes from them is compared
with a limit *before* any work is done with it. A limit has a row, with its reason, if a refusal names it or if more
than one module needs it: the core's are here, a satellite's in its folder, and ``docs/limits.md`` leads to them. Any
other bound, as of Tessera's own memories, is a constant beside the one place that keeps it. Limits of the simulated
cluster are in ``tessera_lab.limits``.
"""

from typing import Self


class Limit(int):
    """A bound with what it bounds, its unit and the reason for its size.

    Attributes:
        unit: what is counted, in the plural: ``"bytes"``, ``"terms"``, ``"ms"``.
        bounds: what is bounded, as a reader of that page says it.
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
