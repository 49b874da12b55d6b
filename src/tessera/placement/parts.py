"""Computations in parts: between two of them a process can do other work."""

from collections.abc import Generator
from typing import TypeVar, cast

Result = TypeVar("Result")
#: A computation that yields between two parts, and returns a result.
Parts = Generator[None, None, Result]


def complete(parts: Parts[Result]) -> Result:
    """Runs a computation to its end, without other work in between."""
    while True:
        try:
            next(parts)
        except StopIteration as end:
            return cast("Result", end.value)
