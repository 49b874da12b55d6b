"""One signal for all parts of an agent: a fact changed, check again.

The signal does not say which fact changed, and a part that waits may have caused it by its own writes. So a part that
must pause, as after a failure, waits with :meth:`ChangeNotifier.wait_differs`: it names the facts that end its pause.
"""

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class ChangeNotifier:
    """Wakes all waiting parts. They read the facts themselves, so several changes may cause one wake-up."""

    def __init__(self) -> None:
        self._waiters: set[asyncio.Event] = set()
        self._count = 0

    @property
    def count(self) -> int:
        """The number of changes so far; equal counts mean that nothing happened in between."""
        return self._count

    def notify(self) -> None:
        """Announces that a fact changed."""
        self._count += 1
        for waiter in self._waiters:
            waiter.set()

    async def wait(self, count: int, seconds: float | None = None) -> None:
        """Returns at the first change after ``count`` (an earlier :attr:`count`), or after ``seconds``."""
        if self._count != count:
            return
        waiter = asyncio.Event()
        self._waiters.add(waiter)
        try:
            async with asyncio.timeout(seconds):
                await waiter.wait()
        except TimeoutError:
            return
        finally:
            self._waiters.discard(waiter)

    async def wait_differs(self, facts: Callable[[], T], before: T, seconds: float | None = None) -> None:
        """Returns once ``facts()`` is no longer ``before``, or after ``seconds``; no other change ends the wait."""
        await self.wait_until(lambda: facts() != before, seconds)

    async def wait_until(self, condition: Callable[[], bool], seconds: float | None) -> bool:
        """Waits until a condition holds; ``False`` if it does not hold within ``seconds``."""
        try:
            async with asyncio.timeout(seconds):
                while not condition():
                    await self.wait(self._count)
        except TimeoutError:
            return condition()
        return True
