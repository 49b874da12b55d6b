"""Cost of work, independent of the machine's speed.

A bound in plain seconds fails on a slow machine and passes on a fast one. There are two ways around it:

* :func:`count_calls` counts calls of functions. The number is the same on every machine. Work inside one function of C,
  such as a search by a regular expression or a decoder, counts as one call.
* :func:`run_within` measures CPU seconds, for work in C. If it took too long, a fixed loop tells how much slower this
  machine is at this time than the reference machine, and the bound grows by that factor.
"""

import cProfile
import gc
import time
from collections.abc import Callable
from typing import TypeVar

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
