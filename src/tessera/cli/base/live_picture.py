"""A picture that stays on the terminal and changes with the cluster: ``--watch`` of every command that has it.

A change of the terminal's size is followed at once. A cluster that does not answer for a while leaves the last
picture, with the reason below it: a picture that stands still without a word would look like a cluster at rest.
"""

import asyncio
import contextlib
import itertools
import shutil
import signal
import textwrap
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tessera.cli.base.connection import connect, describe_error
from tessera.cli.base.console import COLOUR, write_frame
from tessera.cli.base.process import run_command
from tessera.clock import Clock, SystemClock
from tessera.text import age, one_line

if TYPE_CHECKING:
    from tessera.kube.client import Client

T = TypeVar("T")

#: Draws the lines of a picture for a terminal of so many columns and rows.
Picture = Callable[[int, int], Iterable[str]]

#: Size of a terminal that tells none.
_USUAL_SIZE = (80, 24)
#: Seconds after which a picture says that its next reading has not ended, and what it says.
_PATIENCE, _SILENT = 10.0, "no answer yet"
#: Seconds between a change and its reading, and the least between two readings.
PAUSE = 1.0
#: Rows that notes below a picture may take.
_NOTE_ROWS = 4
#: Seconds between two readings of ``--watch``; the controller forecasts every 15 s, and agents measure every 10 s.
_INTERVAL = 5.0


def read_or_watch(
    component: str,
    read: Callable[["Client"], Coroutine[Any, Any, T]],
    lines: Callable[[T, int], Iterable[str]],
    *,
    notes: Callable[[T], Iterable[str]] = lambda _: (),
    watches: bool,
    kubeconfig: Path | None,
    context: str | None,
) -> T:
    """Reads once; with ``-w`` shows what it reads, again and again until Ctrl-C, and does not return.

    Args:
        component: the client's field manager.
        read: reads the cluster.
        lines: what was read, for a terminal of so many columns.
        notes: sentences below the lines.
        watches: ``-w`` was given.
        kubeconfig: the user's file.
        context: the user's choice.
    """

    async def run() -> T:
        async with connect(component, kubeconfig, context) as client:

            async def read_picture() -> Picture:
                found = await read(client)
                return answer_picture(lambda width: lines(found, width), list(notes(found)))

            if watches:
                await show_pictures(read_again(read_picture, SystemClock(), _INTERVAL))
            return await read(client)

    return run_command(run())


def answer_picture(lines: Callable[[int], Iterable[str]], notes: Sequence[str]) -> Picture:
    """The lines for a width, as many as fit, with the notes below them."""

    def table(width: int, height: int) -> Sequence[str]:
        return fit_frame(list(lines(width)), width, height)

    return lambda width, height: with_notes(table, notes, width, height)


def fit_frame(lines: Sequence[str], width: int, height: int) -> Sequence[str]:
    """The first lines that a screen holds, wrapped ones included; the last says how many more there are."""
    rows = [max(1, -(-len(COLOUR.sub("", line)) // max(1, width))) for line in lines]
    if sum(rows) <= height:
        return lines
    count = sum(end < height for end in itertools.accumulate(rows))
    return [*lines[:count], f"... {len(lines) - count} more lines"[:width]]


async def show_pictures(pictures: AsyncIterator[Picture], *, colours: bool = False) -> None:
    """Shows each picture until the next one comes, on the alternate screen; draws it again when the size changes.

    Args:
        pictures: the pictures; an error of theirs ends the command.
        colours: keep the escape sequences of our colours.
    """
    resized = asyncio.Event()
    write_frame([], begin=True)
    try:
        with call_on_resize(resized.set):
            shown: Picture | None = None
            coming = asyncio.ensure_future(anext(pictures))
            try:
                while True:
                    size_change = asyncio.ensure_future(resized.wait())
                    await asyncio.wait({coming, size_change}, return_when=asyncio.FIRST_COMPLETED)
                    size_change.cancel()
                    resized.clear()
                    if coming.done():
                        shown = coming.result()
                        coming = asyncio.ensure_future(anext(pictures))
                    if shown is not None:
                        write_frame(shown(*shutil.get_terminal_size(_USUAL_SIZE)), colours=colours)
            finally:
                coming.cancel()
                await asyncio.gather(coming, return_exceptions=True)
    finally:
        write_frame([], end=True)


@contextmanager
def call_on_resize(handler: Callable[[], object]) -> Iterator[None]:
    """Calls the handler, in the event loop, whenever the terminal's size changes."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGWINCH, handler)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGWINCH)


async def read_again(
    read: Callable[[], Coroutine[Any, Any, Picture]], clock: Clock, interval: float
) -> AsyncIterator[Picture]:
    """A new picture every few seconds; while the cluster does not answer, the last one with the reason.

    Args:
        read: reads the cluster. Its first error is raised.
        clock: the time.
        interval: seconds between two readings.
    """
    since = clock.monotonic()
    async for picture, reason in read_values(read, clock, interval):
        since = since if reason else clock.monotonic()
        yield outdated(picture, clock.monotonic() - since, reason) if reason else picture


async def read_values(
    read: Callable[[], Coroutine[Any, Any, T]], clock: Clock, interval: float, early: asyncio.Event | None = None
) -> AsyncGenerator[tuple[T, str], None]:
    """A new value every few seconds; while the cluster does not answer, the last one with the reason.

    Args:
        read: reads the cluster. Its first error is raised.
        clock: the time.
        interval: seconds between two readings.
        early: set when something has changed, which is then read :data:`PAUSE` seconds later.
    """
    value = await read()
    yield value, ""
    while True:
        await _sleep(clock, interval, early)
        reading = asyncio.create_task(read())
        try:
            while not (await asyncio.wait({reading}, timeout=_PATIENCE))[0]:
                yield value, _SILENT
        finally:
            reading.cancel()
        reason = failure_of(reading)
        value = value if reason else reading.result()
        yield value, reason


async def _sleep(clock: Clock, interval: float, early: asyncio.Event | None) -> None:
    if early is None:
        await clock.sleep(interval)
        return
    await clock.sleep(min(interval, PAUSE))
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(max(0.0, interval - PAUSE)):
            await early.wait()
            await clock.sleep(PAUSE)
    early.clear()


def failure_of(reading: "asyncio.Task[Any]") -> str:
    """Why a reading that has ended failed, for a user; empty if it did not. Raises what is a defect of this program."""
    error = reading.exception()
    if error is None:
        return ""
    reason = describe_error(error)
    if reason is None:
        raise error
    return reason


def outdated(picture: Picture, seconds: float, reason: str) -> Picture:
    """The picture with a note below it: it was read so many seconds ago, and why no newer one could be read."""
    note = f"not up to date for {age(seconds)}: {reason.removeprefix('error: ')}"
    return lambda width, height: with_notes(picture, [note], width, height)


def with_notes(picture: Picture, notes: Sequence[str], width: int, height: int) -> Sequence[str]:
    """The lines of a picture, with notes below it that a long picture does not push off the screen."""
    wrapped = [line for note in notes for line in textwrap.wrap(one_line(note), max(20, width))]
    wrapped = wrapped[: min(_NOTE_ROWS, max(0, height - 2))]
    return [*picture(width, height - len(wrapped)), *wrapped]
