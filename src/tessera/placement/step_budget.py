"""Bounds the cost of a batch in steps instead of time, so that the same batch always ends at the same demand."""


class StepBudget:
    """A number of steps to spend. A step is what asking one node about one demand costs, some microseconds.

    Whoever spends looks at :attr:`spent` before it begins something new; what has begun may overdraw a little.
    """

    def __init__(self, steps: int) -> None:
        self._left = steps

    @property
    def left(self) -> int:
        """Steps that are left; negative once overdrawn."""
        return self._left

    def spend(self, steps: int = 1) -> None:
        """Notes that steps were taken."""
        self._left -= steps

    @property
    def spent(self) -> bool:
        """Tells if no steps are left."""
        return self.left <= 0

    def part(self, share: float) -> "StepBudget":
        """A part of what is left. Whatever is spent from now on, on the part or on the whole, counts on both."""
        return _PartialBudget(self, int(self.left * share))


class _PartialBudget(StepBudget):
    def __init__(self, whole: StepBudget, steps: int) -> None:
        super().__init__(steps)
        self._whole = whole
        self._rest = whole.left - steps

    @property
    def left(self) -> int:
        return self._whole.left - self._rest

    def spend(self, steps: int = 1) -> None:
        self._whole.spend(steps)
