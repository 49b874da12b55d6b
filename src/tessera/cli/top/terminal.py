"""Runs the screen of ``tessera top`` on a terminal: keys and readings in, pictures out, answers beside them."""

import asyncio
import os
import shutil
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from tessera.api.names import SYSTEM_NAMESPACE
from tessera.cli.base.connection import describe_error
from tessera.cli.base.console import write_frame
from tessera.cli.base.live_picture import Picture, call_on_resize, outdated
from tessera.cli.top.screen import Look, draw
from tessera.observe.top_view import Ask, Event, Failed, Pressed, Question, Read, Told, TopView
from tessera.text import age, one_line

if TYPE_CHECKING:
    from tessera.clock import Clock
    from tessera.kube.client import Client
    from tessera.kube.resources import Pod
    from tessera.observe.reading import Usage

#: Lines of a log that are shown before what comes, and the most bytes of a line that is kept.
_TAIL, _LINE = 200, 1 << 14
#: Events that a description lists, the newest ones.
_EVENTS = 20


async def answer(client: "Client", ask: Ask, now: float) -> AsyncIterator[Told | Failed]:
    """Yields the answer in parts; an error becomes a sentence with the next step.

    Args:
        client: the user's client.
        ask: the request.
        now: the time.
    """
    from tessera.kube.errors import ApiError
    from tessera.text import UserError

    makers = {Question.WHY: _why, Question.LOG: _log, Question.DESCRIBE: _describe, Question.PAGE: _page}
    try:
        async for lines in makers[ask.question](client, ask, now):
            yield Told(ask, lines)
    except (click.ClickException, ApiError, UserError, OSError, ValueError) as error:
        yield Failed(ask, _sentence(ask, error))


def _sentence(ask: Ask, error: Exception) -> str:
    """The failure in one line, with what to do next."""
    from tessera.kube.errors import Forbidden, NotFound

    text = error.format_message() if isinstance(error, click.ClickException) else describe_error(error)
    reason = (text or str(error)).removeprefix("error: ")
    if isinstance(error, NotFound):
        reason = f"pod {ask.namespace}/{ask.pod} is gone; press Escape, and choose another one"
    elif isinstance(error, Forbidden) and ask.question is Question.LOG:
        reason = f"you may not read logs in namespace {ask.namespace}: ask an administrator for get on pods/log"
    elif isinstance(error, OSError):
        reason = f"{reason}; press the key again once the server answers"
    return f"{ask.title}: {one_line(reason, 1_000)}"


async def _why(client: "Client", ask: Ask, now: float) -> AsyncIterator[Sequence[str]]:
    from tessera.cli.base.explaining import explain_as_user
    from tessera.explain.explanation import Query, report_lines

    del now
    wanted = Query(kind="pod", name=ask.pod) if ask.pod else Query(kind="node", name=ask.node)
    found, notes = await explain_as_user(client, wanted, ask.namespace or "default")
    yield [*report_lines(found), *(["", *notes] if notes else [])]


async def _log(client: "Client", ask: Ask, now: float) -> AsyncIterator[Sequence[str]]:
    """The last lines of the container's log, and those that come, until its end."""
    from tessera.kube.resources import PODS

    del now
    query = [("follow", "true"), ("tailLines", str(_TAIL)), *([("container", ask.container)] if ask.container else [])]
    async with client.stream(f"{PODS.path(ask.namespace, ask.pod)}/log", query) as chunks:
        yield []
        rest = b""
        async for chunk in chunks:
            *whole, rest = (rest + chunk).split(b"\n")
            yield [each[:_LINE].decode(errors="replace") for each in whole]
            rest = rest[:_LINE]
    yield [*([rest.decode(errors="replace")] if rest else []), "(the log has ended)"]


async def _describe(client: "Client", ask: Ask, now: float) -> AsyncIterator[Sequence[str]]:
    from tessera.kube.errors import ApiError
    from tessera.kube.resources import EVENTS, PODS

    pod = await client.get(PODS, ask.pod, ask.namespace)
    yield list(describe(pod, now))
    try:
        about = f"involvedObject.uid={pod.metadata.uid}"
        events = (await client.list(EVENTS.as_dicts(), ask.namespace, field_selector=about)).items
    except ApiError as error:
        yield ["", f"events: {describe_error(error)}"]
        return
    yield ["", *_event_lines(events, now)]


def describe(pod: "Pod", now: float) -> Iterator[str]:
    """Yields a pod's phase and node, its maker, conditions, containers, and annotations of Tessera."""
    from tessera.clock import parse_rfc3339

    status = pod.status
    started = f", for {age(max(0.0, now - parse_rfc3339(status.start_time)))}" if status.start_time else ""
    yield f"{status.phase or 'phase not known'} on {pod.spec.node_name or 'no node yet'}{started}"
    if pod.workload:
        yield f"made by {pod.workload}"
    if status.reason or status.message:
        yield f"{status.reason}: {status.message}"
    yield ""
    yield "Conditions:"
    for each in status.conditions:
        why = f"  {each.reason}: {each.message}" if each.reason or each.message else ""
        yield f"  {each.type}={each.status}{why}"
    yield ""
    yield "Containers:"
    for container in pod.spec.containers:
        limits = ", ".join(f"{name} {amount}" for name, amount in container.resources.limits.items())
        yield f"  {container.name}: {container.image}"
        yield f"    limits: {limits or 'none'}"
    ours = {key: value for key, value in pod.metadata.annotations.items() if "tessera.dev/" in key}
    if ours:
        yield ""
        yield "Annotations:"
        yield from (f"  {key}: {value}" for key, value in sorted(ours.items()))


def _event_lines(events: Iterable[dict[str, Any]], now: float) -> Iterator[str]:
    from tessera.clock import parse_rfc3339

    def last(event: dict[str, Any]) -> float:
        text = event.get("lastTimestamp") or event.get("eventTime") or ""
        try:
            return parse_rfc3339(text)
        except ValueError:
            return 0.0

    found = sorted(events, key=last)[-_EVENTS:]
    yield "Events:" if found else "No events."
    for each in found:
        when = age(max(0.0, now - last(each))) if last(each) else "?"
        yield f"  {when:>5} ago  {each.get('type', '')} {each.get('reason', '')}: {each.get('message', '')}"


async def _page(client: "Client", ask: Ask, now: float) -> AsyncIterator[Sequence[str]]:
    """The address of the live page, filtered to the row; how to get it where the installation names none."""
    from urllib.parse import urlencode

    from tessera.kube.errors import ApiError
    from tessera.kube.resources import DEPLOYMENTS

    del now
    words = f"ns:{ask.namespace} pod:{ask.pod}" if ask.pod else f"node:{ask.node}"
    place = f"#{urlencode({'q': words}, safe=':')}"
    try:
        found = await client.get(DEPLOYMENTS.as_dicts(), "tessera-dashboard", SYSTEM_NAMESPACE)
    except (ApiError, OSError):
        found = {}
    origins = [
        each.removeprefix("--origin=")
        for container in (found.get("spec") or {}).get("template", {}).get("spec", {}).get("containers", ())
        for each in container.get("args", ())
        if each.startswith("--origin=")
    ]
    if origins:
        yield [f"{origins[0]}/{place}"]
    else:
        yield ["Run in another terminal: tessera dashboard", "Then open:", f"http://localhost:8088/{place}"]


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
