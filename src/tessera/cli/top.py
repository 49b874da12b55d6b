"""``tessera top``: a live table of the use of cards."""

import asyncio
import functools
import os
import shutil
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tessera.cli.base.connection import cluster_options, connect, own_namespace, report_errors
from tessera.cli.base.console import say, write_frame
from tessera.cli.base.grammar import (
    Output,
    namespace_options,
    node_option,
    output_option,
    selected_pods,
    selector_option,
)
from tessera.cli.base.live_picture import PATIENCE, SILENT, Picture, call_on_resize, failure_of, outdated

if TYPE_CHECKING:
    from tessera.kube.client.client import Client
    from tessera.observe.reading import Usage
    from tessera.observe.top_view import TopView
    from tessera.observe.usage_rows import CardRow, LeaseRow

_CARD_HEADER = (
    "CARD",
    "MODEL",
    "STATE",
    "BUSY",
    "MEM GIB",
    "POWER W",
    "TEMP C",
    "SM MHZ",
    "USED",
    "PODS",
    "THROTTLED BY",
)
_POD_HEADER = ("POD", "CONTAINER", "OWNER", "DEVICE", "KIND", "SHARE", "BUSY", "MEM GIB", "STATE", "HELD")
#: Columns that a narrow terminal does not show, the first one first.
_CARD_DROPPED = ("SM MHZ", "THROTTLED BY", "TEMP C", "PODS", "MODEL", "USED")
_POD_DROPPED = ("CONTAINER", "KIND", "HELD", "OWNER", "SHARE", "DEVICE")
#: Faults and excesses of memory that are shown.
_WARNINGS = 5
#: Seconds between two readings: an agent takes a sample every 10 s, and at once when slices or pods change.
_INTERVAL = 5.0
#: Keys by the sequences that terminals send for them.
_SEQUENCES = {
    "\x1b[A": "up",
    "\x1b[B": "down",
    "\x1b[5~": "page-up",
    "\x1b[6~": "page-down",
    "\x1b[H": "home",
    "\x1b[F": "end",
    "\x1b[1~": "home",
    "\x1b[4~": "end",
    "\x1b": "escape",
    "\r": "enter",
    "\n": "enter",
    "\x7f": "backspace",
    "\x08": "backspace",
    "\x03": "q",
}
#: Stands among the keys for a change of the terminal's size, after which the picture is drawn again.
_RESIZED = "resized"


@click.command()
@click.option("--by", type=click.Choice(["pods", "cards"]), default="pods", show_default=True, help="What a row is.")
@click.option(
    "--sort",
    metavar="ORDER",
    default="name",
    show_default=True,
    help="name, busy or memory; for pods also held and wasted, for cards power and temperature.",
)
@namespace_options()
@selector_option
@node_option
@click.option("--once", is_flag=True, help="Print one table and end.  [default: if no terminal reads it]")
@click.option(
    "--interval",
    type=click.FloatRange(1, 3600),
    default=_INTERVAL,
    show_default=True,
    metavar="SECONDS",
    help="Time between two readings.",
)
@output_option("table")
@cluster_options
@report_errors
def command(
    *,
    by: str,
    sort: str,
    namespace: str | None,
    selector: str | None,
    nodes: tuple[str, ...],
    once: bool,
    interval: float,
    output: Output,
    kubeconfig: Path | None,
    context: str | None,
) -> None:
    """Show what cards and pods do: activity, memory, power, temperature, and the state of each lease.

    On a terminal the table is live: c shows cards, p pods, s changes the order, / filters, h lists all keys, q quits.
    A value that the card cannot measure is n/a. Agents take a sample every 10 seconds.

    \b
    Examples:
      tessera top
      tessera top --by cards --sort power
      tessera top -n team-a --sort wasted --once
    """
    from tessera.cli.base.usage import notes_of
    from tessera.observe.top_view import TopView, View

    view = TopView(view=View(by), order=sort)
    if sort not in view.orders:
        raise click.BadParameter(f"{sort!r} is no order of {by}; orders: {', '.join(view.orders)}", param_hint="--sort")
    live = not once and not output.for_programs and sys.stdout.isatty() and sys.stdin.isatty()
    screen = TopScreen(view, namespace, nodes, own_namespace(namespace, kubeconfig, context), selector)
    if live:
        asyncio.run(_run_live(screen, interval, kubeconfig, context))
        return
    usage = asyncio.run(_read_once(screen, kubeconfig, context))
    cards, leases = view.select_cards(usage), view.select_leases(usage)
    is_cards = view.view is View.CARDS
    output.show(
        {"simulated": usage.simulated, by: cards if is_cards else leases, "silent": usage.fleet.failures},
        [*screen.table(usage), *screen.warnings(usage)],
        [f"node/{row.node}" for row in cards] if is_cards else [f"pod/{row.lease.pod}" for row in leases],
    )
    if notes := list(notes_of(usage)):
        say(*notes, err=True)


class TopScreen:
    """Reads the cluster and draws the tables.

    Args:
        view: its state.
        namespace: whose pods are shown; None for all.
        nodes: nodes that are shown; empty for all.
        home: the namespace in which a tenant has rights.
        selector: labels of the pods that are shown; None for all.
    """

    def __init__(
        self,
        view: "TopView",
        namespace: str | None,
        nodes: Sequence[str],
        home: str = "default",
        selector: str | None = None,
    ) -> None:
        self.view = view
        self._selector = selector
        self._namespace = namespace
        self._nodes = nodes
        self._home = home

    async def read(self, client: "Client") -> "Usage":
        """Reads the cluster; only leases of the chosen namespace remain."""
        import msgspec

        from tessera.cli.base.usage import read_or_explain, with_labels

        usage = await read_or_explain(client, self._nodes, namespace=self._home)
        usage = with_labels(usage, await selected_pods(client, self._selector, self._namespace, self._home))
        if self._namespace is None:
            return usage
        kept = [row for row in usage.leases if row.lease.namespace == self._namespace]
        return msgspec.structs.replace(usage, leases=kept)

    def table(self, usage: "Usage", width: int = 0) -> list[str]:
        """The summary and all rows."""
        from tessera.cli.base.table import fit_terminal, table_lines
        from tessera.observe.top_view import View

        header: Sequence[str]
        if self.view.view is View.CARDS:
            cells, header = [_card_cells(row) for row in self.view.select_cards(usage)], _CARD_HEADER
            numbers, dropped = range(3, 10), _CARD_DROPPED
        else:
            cells, header = [_pod_cells(row) for row in self.view.select_leases(usage)], _POD_HEADER
            numbers, dropped = range(5, 8), _POD_DROPPED
        lines = [_summary(usage, width)]
        if cells:
            shown, rows = fit_terminal(header, cells, names=header[:1], dropped=dropped, width=width)
            lines += table_lines(
                [header[each] for each in shown],
                [[row[each] for each in shown] for row in rows],
                numbers=frozenset(at for at, each in enumerate(shown) if each in numbers),
                width=width,
            )
        else:
            lines.append("no card answers" if not usage.cards else f"no {self.view.view.value} to show")
        return lines

    def warnings(self, usage: "Usage") -> list[str]:
        """What is wrong with the cards of the pods that are shown, with their use of it, and with free cards."""
        found = [f"{row.key} on {row.node}/{row.card}: {row.lease.fault}" for row in usage.leases if row.lease.fault]
        found += [
            f"{row.key} on {row.node}/{row.card}: {each.text}. {each.advice}"
            for row in usage.leases
            for each in row.lease.findings
            if each.kind == "memory_over_limit"
        ]
        shown = list(dict.fromkeys(found))
        more = [f"{len(shown) - _WARNINGS} more; see tessera health"] if len(shown) > _WARNINGS else []
        return [f"! {each}" for each in (*shown[:_WARNINGS], *more, *usage.blocked[:_WARNINGS])]

    def frame(self, usage: "Usage", width: int, height: int) -> Iterator[str]:
        """The lines of one picture of the terminal."""
        from tessera.observe.top_view import HELP, visible_rows

        view = self.view
        summary, *rows = self.table(usage, width)
        header, rows = rows[0], rows[1:]
        yield summary[:width]
        yield self._status(usage)[:width]
        if view.shows_help:
            yield from (line[:width] for line in HELP)
        warnings = self.warnings(usage)[: max(0, height - 6)]
        yield from (line[:width] for line in warnings)
        yield header
        room = max(1, height - 3 - len(warnings) - (len(HELP) if view.shows_help else 0))
        yield from visible_rows(rows, view, room)

    def _status(self, usage: "Usage") -> str:
        from tessera.text import list_names

        view = self.view
        parts = [f"{view.view.value} by {view.order}{' reversed' if view.reverse else ''}"]
        if view.filter or view.editing:
            parts.append(f"filter: {view.filter}{'_' if view.editing else ''}")
        if usage.fleet.failures:
            parts.append(f"no answer from {list_names([each.node for each in usage.fleet.failures], 2)}")
        return "   ".join((*parts, "h: help"))


def _summary(usage: "Usage", width: int) -> str:
    """The sums; a narrow terminal shows the first of them."""
    from tessera.cli.base.usage import gib_of, percent
    from tessera.text import count_noun

    cards = usage.cards
    busy = [row.busy for row in cards if row.busy is not None]
    power = [row.power for row in cards if row.power is not None]
    memory = [row.memory for row in cards if row.memory is not None]
    whole = [row.memory_total for row in cards if row.memory_total is not None]
    pods = len({row.lease.uid for row in usage.leases})
    measured = f", measured on {len(busy)} of {count_noun(len(cards), 'card')}" if 0 < len(busy) < len(cards) else ""
    parts = [
        *(["simulated cards"] if usage.simulated else []),
        f"{count_noun(len(usage.fleet.nodes), 'node')}, {count_noun(len(cards), 'card')}, {count_noun(pods, 'pod')}",
        f"busy {percent(sum(busy) / len(busy) if busy else None)}{measured}",
        f"memory {gib_of(sum(memory) if memory else None, sum(whole) if whole else None)} GiB",
        f"power {sum(power):,.0f} W" if power else "power n/a",
    ]
    while width and len(parts) > 1 and len("   ".join(parts)) > width:
        parts.pop()
    return "   ".join(parts)


def _card_cells(row: "CardRow") -> tuple[str, ...]:
    from tessera.cli.base.usage import NOT_MEASURED, gib_of, percent

    return (
        f"{row.node}/{row.index}",
        row.model.removeprefix("NVIDIA "),
        row.state,
        percent(row.busy),
        gib_of(row.memory, row.memory_total),
        _power(row),
        NOT_MEASURED if row.temperature is None else f"{row.temperature:.0f}",
        NOT_MEASURED if row.sm_clock is None else f"{row.sm_clock / 1e6:.0f}",
        percent(row.held),
        str(row.pods),
        NOT_MEASURED if row.throttled is None else ", ".join(row.throttled) or "-",
    )


def _power(row: "CardRow") -> str:
    """``59/400``, in watts."""
    from tessera.cli.base.usage import NOT_MEASURED

    limit = NOT_MEASURED if row.power_limit is None else f"{row.power_limit:.0f}"
    return NOT_MEASURED if row.power is None else f"{row.power:.0f}/{limit}"


def _pod_cells(row: "LeaseRow") -> tuple[str, ...]:
    from tessera.cli.base.usage import device_of, gib_of, held_for, percent

    lease = row.lease
    return (
        row.key,
        lease.container or "-",
        row.owner or "-",
        device_of(row),
        lease.kind,
        percent(lease.share),
        percent(lease.busy),
        gib_of(lease.memory, row.memory_limit),
        lease.state,
        held_for(row),
    )


async def _read_once(screen: TopScreen, kubeconfig: Path | None, context: str | None) -> "Usage":
    async with connect("tessera-top", kubeconfig, context) as client:
        return await screen.read(client)


async def _run_live(screen: TopScreen, interval: float, kubeconfig: Path | None, context: str | None) -> None:
    """Shows the table until the user quits. A cluster that stops answering leaves the last table with a note."""
    async with connect("tessera-top", kubeconfig, context) as client, _keys() as keys:
        usage, note = await screen.read(client), ""
        reading: asyncio.Task[Usage] | None = None
        loop = asyncio.get_running_loop()
        read_at = loop.time()
        due = read_at + interval
        while not screen.view.ended:
            width, height = shutil.get_terminal_size()
            picture: Picture = functools.partial(screen.frame, usage)
            if note:
                picture = outdated(picture, loop.time() - read_at, note)
            write_frame(picture(width, height))
            if reading is None and loop.time() >= due:
                reading = asyncio.create_task(screen.read(client))
            key = asyncio.create_task(keys.get())
            waits = {key} if reading is None else {key, reading}
            rest = PATIENCE if reading is not None else max(0.0, due - loop.time())
            ended, _ = await asyncio.wait(waits, timeout=rest, return_when=asyncio.FIRST_COMPLETED)
            if key.done():
                if key.result() != _RESIZED:
                    screen.view.press(key.result(), page=max(1, height - 4))
            else:
                key.cancel()
            if reading is not None and reading.done():
                note = failure_of(reading)
                if not note:
                    usage, read_at = reading.result(), loop.time()
                reading, due = None, loop.time() + interval
            elif reading is not None and not ended:
                note = note or SILENT
        if reading is not None:
            reading.cancel()


@asynccontextmanager
async def _keys() -> AsyncIterator["asyncio.Queue[str]"]:
    """Key presses of the terminal, with the alternate screen on and echo off inside the block."""
    import termios
    import tty

    keys: asyncio.Queue[str] = asyncio.Queue()
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    loop = asyncio.get_running_loop()

    def read() -> None:
        for key in split_keys(os.read(descriptor, 1024).decode(errors="replace")):
            keys.put_nowait(key)

    tty.setcbreak(descriptor)
    write_frame([], begin=True)
    loop.add_reader(descriptor, read)
    try:
        with call_on_resize(lambda: keys.put_nowait(_RESIZED)):
            yield keys
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
