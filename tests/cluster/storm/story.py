"""The events of a storm in order, for a reader who looks for the cause of a failure."""

import logging
from collections import Counter

from tests.cluster.driverlab import BEGAN

from tessera.clock import LoopClock

#: What happens again and again is told so often; it does not hide what happened before.
_MOST_REPEATS = 5


class Story(logging.Handler):
    """Happenings with their simulated seconds, and what should not have been.

    Warnings of the processes are part of it: attach it to a logger.

    Attributes:
        problems: what should not have been.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._clock = LoopClock(BEGAN)
        self._lines: list[str] = []
        self._said = Counter[str]()
        self.problems: list[str] = []

    def note(self, text: str) -> None:
        """Something happened."""
        self._said[text] += 1
        if self._said[text] > _MOST_REPEATS:
            return
        self._lines.append(f"{self._clock.now() - BEGAN:10.2f} s  {text}")

    def problem(self, text: str) -> None:
        """Something happened that must never happen; the same is told once."""
        if text not in self.problems:
            self.problems.append(text)
            self.note(f"WRONG: {text}")

    def emit(self, record: logging.LogRecord) -> None:
        """A process warns."""
        self.note(f"  log {record.name.rpartition('.')[2]}: {record.getMessage()[:400]}")

    def text(self, title: str) -> str:
        """All of it, what was wrong first."""
        wrong = "\n".join(f"- {each}" for each in self.problems)
        told = "\n".join(self._lines)
        return f"{title}: {len(self.problems)} wrong\n{wrong}\n\nwhat happened:\n{told}"
