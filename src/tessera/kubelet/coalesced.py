"""Coalesces concurrent calls: callers that ask at the same time share one answer.

Kubelet limits the rate of pod-resources calls, and pods that start together cause calls at the same time. An answer
that was gathered before a caller asked might lack that caller's pod. So a caller never joins a running call; waiting
callers share the next one.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Coalesced(Generic[T]):
    """Makes ``call`` at most once at a time; every caller gets an answer that began after it called."""

    def __init__(self, call: Callable[[], Awaitable[T]]) -> None:
        self._call = call
        self._running = asyncio.Lock()
        self._next: asyncio.Task[T] | None = None

    async def __call__(self) -> T:
        """The answer, or the error, of the next call."""
        if self._next is None:
            self._next = asyncio.create_task(self._run())
            self._next.add_done_callback(_consume_error)
        return await asyncio.shield(self._next)

    async def _run(self) -> T:
        async with self._running:
            self._next = None
            return await self._call()


def _consume_error(task: "asyncio.Task[T]") -> None:
    """Takes an error for which no caller waits, so that asyncio does not log it."""
    if not task.cancelled():
        task.exception()
