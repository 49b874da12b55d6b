"""Cost of work, independent of the machine's speed.

A bound in plain seconds fails on a slow machine and passes on a fast one. There are two ways around it:

* :func:`count_calls` counts calls of functions. The number is the same on every machine. Work inside one function of C,
  such as a search by a regular expression or a decoder, counts as one call. :func:`most_calls_at_a_time` counts those
  for which a task holds the event loop.
* :func:`run_within` measures CPU seconds, for work in C. If it took too long, a fixed loop tells how much slower this
  machine is at this time than the reference machine, and the bound grows by that factor.
"""

import asyncio
import cProfile
import gc
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

#: CPU seconds that :func:`_run_yardstick` takes on the reference machine: one core of about 3 GHz, measured.
_REFERENCE_SECONDS = 0.025


def count_calls(work: Callable[[], T]) -> tuple[int, T]:
    """Runs ``work``.

    Returns:
        The number of calls, of functions of Python and of C, and the result of ``work``.
    """
    profile = cProfile.Profile()
    gc.disable()  # a collection calls the finalizers of other tests' objects
    try:
        result = profile.runcall(work)
    finally:
        gc.enable()
    return sum(entry.callcount for entry in profile.getstats()), result


async def most_calls_at_a_time(work: Coroutine[Any, Any, object]) -> int:
    """Runs ``work`` as a task, and returns the most calls between two turns of the event loop."""
    longest = count = 0

    def note(_frame: object, event: str, _what: object) -> None:
        nonlocal count
        count += event in {"call", "c_call"}

    task = asyncio.ensure_future(work)
    sys.setprofile(note)
    try:
        while not task.done():
            before = count
            await asyncio.sleep(0)
            longest = max(longest, count - before)
    finally:
        sys.setprofile(None)
    await task
    return longest


def run_within(seconds: float, work: Callable[[], T], what: object = "the work") -> T:
    """Runs ``work`` and returns its result.

    Args:
        seconds: CPU seconds that the work may take on the reference machine.
        work: runs in this thread.
        what: name of the work in the error's text.

    Raises:
        AssertionError: it took more.
    """
    began = time.thread_time()
    result = work()
    took = time.thread_time() - began
    if took > seconds:
        factor = _run_yardstick() / _REFERENCE_SECONDS
        assert took <= seconds * factor, f"{what} took {took:.2f} CPU seconds on a machine {factor:.1f} times as slow"
    return result


def _run_yardstick() -> float:
    """Returns the CPU seconds of a fixed loop."""
    began = time.thread_time()
    found: dict[int, str] = {}
    for number in range(100_000):
        found[number % 1000] = str(number)
    return time.thread_time() - began
