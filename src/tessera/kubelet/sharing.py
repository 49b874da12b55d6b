"""One answer for everybody who asks at the same time.

Kubelet limits how often it may be asked, and pods that start together ask together. A caller must not get an answer
that was gathered before it asked, since its own pod might not be in it; so callers never join a call that is running,
they share the one after it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Shared(Generic[T]):
    """Makes ``call`` at most once at a time; every caller gets an answer that began after it called."""

    def __init__(self, call: Callable[[], Awaitable[T]]) -> None:
        self._call = call
        self._running = asyncio.Lock()
        self._next: asyncio.Task[T] | None = None

    async def __call__(self) -> T:
        """The answer, or the error, of the next call."""
        if self._next is None:
            self._next = asyncio.create_task(self._run())
            self._next.add_done_callback(_seen)
        return await asyncio.shield(self._next)

    async def _run(self) -> T:
        async with self._running:
            self._next = None
            return await self._call()


def _seen(task: "asyncio.Task[T]") -> None:
    """An error that no caller is left to take is no news."""
    if not task.cancelled():
        task.exception()
