"""Shows steps on a terminal: a live line with the seconds while a step runs, a line with its time when it is done.

Times are in one column, and lines fit a terminal of 80 columns. Without a terminal, only the finished lines are
written, so that a log stays readable. Hand-written because the live line is all that the demo needs: ``rich`` with its
dependencies is 13 MB, and its import takes 124 ms.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle

import msgspec

from tessera.cli.base.console import say_coloured, say_live, shows_colours
from tessera.clock import Clock

#: Columns of a step's text.
WIDTH = 66
#: Frames of the spinner before a running step, and seconds between two frames.
_FRAMES, _REDRAW_SECONDS = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏", 0.1


class TimedStep(msgspec.Struct, frozen=True):
    """One finished step and how long it took, seconds."""

    text: str
    seconds: float


class Progress:
    """Writes steps to standard output and remembers their times."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.steps: list[TimedStep] = []
        self.live = shows_colours()

    @contextmanager
    def step(self, doing: str, done: str) -> Iterator[None]:
        """Shows ``doing`` until the block ends, then ``done`` with the time; after a failure ``doing`` stays."""
        started = self._clock.monotonic()
        try:
            with self._spinner(doing):
                yield
        except BaseException:
            say_coloured(f"  {self._paint('✗', 31)} {doing}")
            raise
        self.finish(done, self._clock.monotonic() - started)

    def finish(self, done: str, seconds: float) -> None:
        """Writes one finished step."""
        self.steps.append(TimedStep(done, seconds))
        say_coloured(f"  {self._paint('✓', 32)} {done:<{WIDTH}} {seconds:6.2f} s")

    def command(self, line: str) -> None:
        """Writes a command line as a user would type it; its output follows."""
        say_coloured("", self._paint(f"$ {line}", 1))

    def _paint(self, text: str, code: int) -> str:
        """The text in ANSI's rendition ``code``, on a terminal."""
        return f"\x1b[{code}m{text}\x1b[0m" if self.live else text

    @contextmanager
    def _spinner(self, text: str) -> Iterator[None]:
        """Redraws one line with the seconds that passed, from a thread, until the block ends."""
        if not self.live:
            yield
            return
        started, ended = self._clock.monotonic(), threading.Event()

        def redraw() -> None:
            for frame in cycle(_FRAMES):
                say_live(f"  {frame} {text:<{WIDTH}} {self._clock.monotonic() - started:6.1f} s")
                if ended.wait(_REDRAW_SECONDS):
                    return

        drawing = threading.Thread(target=redraw, daemon=True)
        drawing.start()
        try:
            yield
        finally:
            ended.set()
            drawing.join()
            say_live("")
