"""Steps on a terminal: a live line with its seconds while one is under way, a line with its time when it is done.

Times stand in one column, and lines fit a terminal of 80. Without a terminal only the finished lines are written, so
that a log stays readable.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from tessera.cli.base.console import colours, say_coloured
from tessera.clock import Clock

#: Columns of a step's text.
WIDTH = 66


class Step(msgspec.Struct, frozen=True):
    """One finished step and how long it took, seconds."""

    text: str
    seconds: float


class Progress:
    """Writes steps to standard output and remembers their times."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.steps: list[Step] = []
        self.live = colours()

    @contextmanager
    def step(self, doing: str, done: str) -> Iterator[None]:
        """Shows ``doing`` until the block ends, then ``done`` with the time; a failed block leaves ``doing`` behind."""
        started = self._clock.monotonic()
        try:
            with self._spinner(doing):
                yield
        except BaseException:
            say_coloured(f"  {self._painted('✗', 31)} {doing}")
            raise
        self.finish(done, self._clock.monotonic() - started)

    def finish(self, done: str, seconds: float) -> None:
        """Writes one finished step."""
        self.steps.append(Step(done, seconds))
        say_coloured(f"  {self._painted('✓', 32)} {done:<{WIDTH}} {seconds:6.2f} s")

    def command(self, line: str) -> None:
        """Writes a command line whose output follows, as a user would have typed it."""
        say_coloured("", self._painted(f"$ {line}", 1))

    def _painted(self, text: str, code: int) -> str:
        """The text in ANSI's rendition ``code``, on a terminal."""
        return f"\x1b[{code}m{text}\x1b[0m" if self.live else text

    @contextmanager
    def _spinner(self, text: str) -> Iterator[None]:
        if not self.live:
            yield
            return
        from rich.progress import Progress as Live
        from rich.progress import ProgressColumn, SpinnerColumn, Task, TextColumn
        from rich.text import Text

        class Seconds(ProgressColumn):
            def render(self, task: Task) -> Text:
                return Text(f"{task.elapsed or 0:5.1f} s")

        columns = (TextColumn(" "), SpinnerColumn(), TextColumn(f"{{task.description:<{WIDTH}}}"), Seconds())
        with Live(*columns, transient=True) as live:
            live.add_task(text, total=None)
            yield
