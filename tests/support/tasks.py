"""Ends the tasks that a test started."""

import asyncio
from collections.abc import Iterable


async def cancel_tasks(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Cancels the tasks and returns once all have ended; their errors are dropped."""
    running = list(tasks)
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
