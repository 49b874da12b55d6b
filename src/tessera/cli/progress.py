"""Steps on a terminal: a live line while one is under way, a line with its time when it is done.

Without a terminal only the finished lines are written, so that a log stays readable.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from tessera.clock import Clock


class Step(msgspec.Struct, frozen=True):
    """One finished step and how long it took, seconds."""

    text: str
    seconds: float


class Progress:
    """Writes steps to standard output and remembers their times."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.steps: list[Step] = []
        self.live = sys.stdout.isatty()

    @contextmanager
    def step(self, doing: str, done: str) -> Iterator[None]:
        """Shows ``doing`` until the block ends, then ``done`` with the time; a failed block leaves ``doing`` behind."""
        started = self._clock.monotonic()
        try:
            with self._spinner(doing):
                yield
        except BaseException:
            print(f"  ✗ {doing}")
            raise
        self.finish(done, self._clock.monotonic() - started)

    def finish(self, done: str, seconds: float) -> None:
        """Writes one finished step."""
        self.steps.append(Step(done, seconds))
        print(f"  ✓ {done:<74} {seconds:6.2f} s", flush=True)

    @contextmanager
    def _spinner(self, text: str) -> Iterator[None]:
        if not self.live:
            yield
            return
        from rich.console import Console

        with Console().status(text):
            yield
