"""Bounds the cost of a batch in steps instead of time, so that the same batch always ends at the same demand."""


class Work:
    """A number of steps to spend. A step is what asking one node about one demand costs, some microseconds.

    Whoever spends looks at :attr:`spent` before it begins something new; what has begun may overdraw a little.

    Attributes:
        left: steps that are left; negative once overdrawn.
    """

    def __init__(self, steps: int) -> None:
        self.left = steps

    def spend(self, steps: int = 1) -> None:
        """Notes that steps were taken."""
        self.left -= steps

    @property
    def spent(self) -> bool:
        """Tells if no steps are left."""
        return self.left <= 0

    def part(self, share: float) -> "Work":
        """A part of what is left, to be spent beside it: whoever gets it also charges it here."""
        return _Part(self, int(self.left * share))


class _Part(Work):
    def __init__(self, whole: Work, steps: int) -> None:
        super().__init__(steps)
        self._whole = whole

    def spend(self, steps: int = 1) -> None:
        self.left -= steps
        self._whole.spend(steps)
