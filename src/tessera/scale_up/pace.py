"""Counts the steps of a search, and lets other work of the process come first between two parts of it."""

import asyncio

from tessera.placement.step_budget import StepBudget

#: Steps of one part: 2 to 8 ms, since a step costs 10 to 40 µs (`bench/new_nodes.py`).
PART = 200
#: Parts of contents that one step makes, and kinds of requests that one step looks through.
CONTENTS_A_STEP, KINDS_A_STEP = 4, 8


class _Part:
    """The steps since other work came first; parts of a search share it."""

    def __init__(self) -> None:
        self.steps = 0


class Pace:
    """The steps of one search.

    Args:
        work: the budget.
    """

    def __init__(self, work: StepBudget, part: _Part | None = None) -> None:
        self._work = work
        self._taken = part or _Part()

    @property
    def is_spent(self) -> bool:
        """True if no steps are left."""
        return self._work.is_spent

    @property
    def is_due(self) -> bool:
        """True if other work should come first now."""
        return self._taken.steps >= PART

    def spend(self, steps: int = 1) -> None:
        """Counts steps."""
        self._work.spend(steps)
        self._taken.steps += steps

    async def pause(self) -> None:
        """Lets other work come first."""
        self._taken.steps = 0
        await asyncio.sleep(0)

    async def step(self, steps: int = 1) -> None:
        """Counts steps, and pauses if a pause is due."""
        self.spend(steps)
        if self.is_due:
            await self.pause()

    def part(self, share: float) -> "Pace":
        """Returns the pace of a part of the search, with a share of the steps that are left."""
        return Pace(self._work.part(share), self._taken)
