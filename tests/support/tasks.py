"""Finds the tasks of a loop, and ends those that a test started."""

import asyncio
from collections.abc import Iterable
from typing import Any


def keep_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Keeps the tasks of a loop for :func:`running_tasks`, before this process is forked.

    In the fork asyncio's own list has none of them, from Python 3.14 on.
    """
    vars(loop)["tasks_before"] = asyncio.all_tasks(loop)


def running_tasks() -> set[asyncio.Task[Any]]:
    """The tasks of the running loop, also those of before a fork."""
    before: set[asyncio.Task[Any]] = vars(asyncio.get_running_loop()).get("tasks_before", set())
    return asyncio.all_tasks() | {each for each in before if not each.done()}


async def cancel_tasks(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Cancels the tasks and returns once all have ended; their errors are dropped."""
    running = list(tasks)
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
