"""Bounds the cost of a batch in steps instead of time, so that the same batch always ends at the same demand.

A long computation is made in parts: between two of them a process can do other work.
"""

from collections.abc import Generator
from typing import TypeVar, cast

Result = TypeVar("Result")
#: A computation that yields between two parts, and returns a result.
Parts = Generator[None, None, Result]


class StepBudget:
    """A number of steps to spend. One step is the cost of asking one node about one demand, some microseconds.

    A spender checks :attr:`is_spent` before it begins something new; begun work may overdraw a little.
    """

    def __init__(self, steps: int) -> None:
        self._left = steps

    @property
    def remaining(self) -> int:
        """Returns the steps that are left; negative if overdrawn."""
        return self._left

    def spend(self, steps: int = 1) -> None:
        """Counts steps that were taken."""
        self._left -= steps

    @property
    def is_spent(self) -> bool:
        """True if no steps are left."""
        return self.remaining <= 0

    def part(self, share: float) -> "StepBudget":
        """Returns a budget with a part of the remaining steps. Its steps count on this budget too."""
        return _PartialBudget(self, int(self.remaining * share))


class _PartialBudget(StepBudget):
    def __init__(self, whole: StepBudget, steps: int) -> None:
        super().__init__(steps)
        self._whole = whole
        self._rest = whole.remaining - steps

    @property
    def remaining(self) -> int:
        return self._whole.remaining - self._rest

    def spend(self, steps: int = 1) -> None:
        self._whole.spend(steps)


def complete(parts: Parts[Result]) -> Result:
    """Runs a computation to its end, without other work in between."""
    while True:
        try:
            next(parts)
        except StopIteration as end:
            return cast("Result", end.value)
