"""Runs the screen of ``tessera top`` on a terminal: keys and readings in, pictures out, answers beside them."""

import asyncio
import os
import shutil
import sys
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tessera.cli.base.console import write_frame
from tessera.cli.base.live_picture import Picture, call_on_resize, outdated
from tessera.cli.top.answers import answer
from tessera.cli.top.screen import Look, draw
from tessera.observe.top_view import Ask, Event, Pressed, Read, TopView

if TYPE_CHECKING:
    from tessera.clock import Clock
    from tessera.kube.client import Client
    from tessera.observe.reading import Usage

#: Keys by the sequences that terminals send for them.
_SEQUENCES = {
    "\x1b[A": "up",
    "\x1b[B": "down",
    "\x1bOA": "up",
    "\x1bOB": "down",
    "\x1b[5~": "page-up",
    "\x1b[6~": "page-down",
    "\x1b[H": "home",
    "\x1b[F": "end",
    "\x1bOH": "home",
    "\x1bOF": "end",
    "\x1b[1~": "home",
    "\x1b[4~": "end",
    "\x1b": "escape",
    "\r": "enter",
    "\n": "enter",
    "\x7f": "backspace",
    "\x08": "backspace",
}
#: Rows of the screen that are no rows of the table.
_OTHER_ROWS = 5

#: A reading, and why no newer one could be read, or nothing.
Reading = tuple["Usage", str]


async def show(
    client: "Client", clock: "Clock", view: TopView, look: Look, readings: AsyncGenerator[Reading, None]
) -> None:
    """Shows the screen until the user quits.

    Args:
        client: the user's client.
        clock: the time.
        view: the state.
        look: what the terminal can show.
        readings: of the cluster. An error of the first one is raised before the screen begins.
    """
    live = _Live(client, clock, view, look)
    live.take(await anext(readings))
    with _keys(live.press), call_on_resize(lambda: live.take(None)):
        reader = asyncio.create_task(live.follow(readings))
        try:
            await live.run()
        finally:
            reader.cancel()
            live.stop()
            await asyncio.gather(reader, return_exceptions=True)


class _Live:
    """One run of the screen: its events in their order, and the requests that run.

    Args:
        client: the user's client.
        clock: the time.
        view: the state.
        look: what the terminal can show.
    """

    def __init__(self, client: "Client", clock: "Clock", view: TopView, look: Look) -> None:
        self._client = client
        self._clock = clock
        self._view = view
        self._look = look
        self._events: asyncio.Queue[Event | Reading | Exception | None] = asyncio.Queue()
        #: The request of the open text.
        self._asked: asyncio.Task[None] | None = None
        self._note = ""
        self._read_at = clock.monotonic()

    def take(self, event: "Event | Reading | Exception | None") -> None:
        """Puts an event into its order; None to draw again."""
        self._events.put_nowait(event)

    def press(self, key: str) -> None:
        """Takes a key of the terminal."""
        self.take(Pressed(key, max(1, shutil.get_terminal_size().lines - _OTHER_ROWS)))

    async def follow(self, readings: AsyncGenerator[Reading, None]) -> None:
        """Takes each reading; an error of theirs ends the screen."""
        try:
            async for each in readings:
                self.take(each)
        except Exception as error:  # noqa: BLE001 - it is raised where the screen runs
            self.take(error)

    async def run(self) -> None:
        """Draws after each event, or after those that came together, until the user quits."""
        while not self._view.ended:
            self._handle(await self._events.get())
            while not self._events.empty():
                self._handle(self._events.get_nowait())
            self._draw()

    def stop(self) -> None:
        """Ends the request that runs: a log comes without an end."""
        if self._asked is not None:
            self._asked.cancel()
            self._asked = None

    def _handle(self, event: "Event | Reading | Exception | None") -> None:
        match event:
            case Exception():
                raise event
            case (usage, note):
                self._note = note
                if note:
                    return
                self._read_at = self._clock.monotonic()
                self._view.handle(Read(usage))
            case None:
                return
            case _:
                for ask in self._view.handle(event):
                    self._start(ask)
        if self._view.pane is None:
            self.stop()

    def _start(self, ask: Ask) -> None:
        self.stop()
        self._asked = asyncio.create_task(self._pass_on(ask))

    async def _pass_on(self, ask: Ask) -> None:
        async for event in answer(self._client, ask, self._clock.now()):
            self.take(event)

    def _draw(self) -> None:
        def picture(width: int, height: int) -> Iterable[str]:
            return draw(self._view, width, height, self._look)

        shown: Picture = picture
        if self._note:
            shown = outdated(picture, self._clock.monotonic() - self._read_at, self._note)
        write_frame(shown(*shutil.get_terminal_size()), colours=True)


@contextmanager
def _keys(press: Callable[[str], None]) -> Iterator[None]:
    """Passes on the keys of the terminal, with the alternate screen on and echo off inside the block."""
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    loop = asyncio.get_running_loop()

    def read() -> None:
        data = os.read(descriptor, 1024)
        if not data:  # the terminal has gone
            loop.remove_reader(descriptor)
        for key in split_keys(data.decode(errors="replace")) if data else "q":
            press(key)

    tty.setcbreak(descriptor)
    write_frame([], begin=True)
    loop.add_reader(descriptor, read)
    try:
        yield
    finally:
        loop.remove_reader(descriptor)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
        write_frame([], end=True)


def split_keys(text: str) -> Iterator[str]:
    """Splits what a terminal sent into keys; unknown escape sequences are dropped."""
    at = 0
    while at < len(text):
        found = next((each for each in _SEQUENCES if len(each) > 1 and text.startswith(each, at)), None)
        if found is not None:
            yield _SEQUENCES[found]
            at += len(found)
        elif text.startswith("\x1b[", at):
            at += 2
            while at < len(text) and not text[at].isalpha() and text[at] != "~":
                at += 1
            at += 1
        else:
            yield _SEQUENCES.get(text[at], text[at])
            at += 1
