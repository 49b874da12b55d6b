"""The screen of ``tessera top`` as lines of styled text, for a terminal of any size. Pure.

From the top: the sums, the state of the table, two gauges, what is wrong, the table with its cursor, and the keys or a
message. A text that a key asked for takes the table's place. Colour is never the only sign: the cursor is a mark and
reversed, a state is a word, a bar stands beside its number.
"""

import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from tessera.cli.base.console import fit_terminal, table_cells
from tessera.cli.base.usage import percent
from tessera.cli.top.columns import cells_of, columns_of, empty, summary, sums_of, warnings
from tessera.observe.service_rows import ServiceRow
from tessera.observe.top_view import Pane, TopView, View, visible
from tessera.observe.usage_rows import CardRow, TeamRow
from tessera.text import list_names, one_line

if TYPE_CHECKING:
    from tessera.observe.reading import Usage
    from tessera.observe.top_view import Rows
    from tessera.observe.usage_rows import LeaseRow

#: Escape sequences by style. Those that are no colour stay without colours.
_COLOURS: Mapping[str, str] = {"good": "\x1b[32m", "fair": "\x1b[33m", "bad": "\x1b[31m", "accent": "\x1b[36m"}
_ATTRIBUTES: Mapping[str, str] = {"bold": "\x1b[1m", "cursor": "\x1b[7m", "dim": "\x1b[2m"}
_END = "\x1b[0m"
#: Styles by state of a lease or a card; other states have none.
_STATES: Mapping[str, str] = {
    **dict.fromkeys(("busy", "healthy"), "good"),
    **dict.fromkeys(("idle", "resident", "never_used", "degraded", "replace", "cordoned", "withheld"), "fair"),
    **dict.fromkeys(("lost", "needs_reset", "needs_reboot"), "bad"),
}
#: Parts of a card from which on its bar is fair, and bad: nvitop's levels.
_FAIR, _BAD = 0.65, 0.9
#: Titles of the columns of bars, the columns of a bar, and of one on a terminal from so many columns on.
_BUSY_BAR, _MEMORY_BAR, _BAR, _WIDE_BAR, _WIDE = " ", "  ", 6, 12, 140
#: Eighths of a character, and its plain form for terminals without them.
_BLOCKS, _PLAIN = " ▏▎▍▌▋▊▉█", " #"
#: Rows from which on the gauges are shown.
_GAUGES_FROM = 16
#: Keys by what is shown, the first ones the most needed; a narrow terminal shows fewer.
_KEYS = (
    *(
        "q quit",
        "? help",
        "Enter why",
        "l log",
        "d describe",
        "/ filter",
        "s sort",
        "c cards",
        "p pods",
        "v services",
        "t teams",
        "o page",
    ),
    "r reverse",
)
_TEXT_KEYS = ("Esc back", "arrows, Page Up/Down scroll", "Enter why", "l log", "d describe", "o page")
#: Lines that a message may take.
_MESSAGE = 3


class Span(NamedTuple):
    """A piece of a line, and its style."""

    text: str
    style: str = ""


Line = Sequence[Span]


class Look(NamedTuple):
    """What the terminal can show: colours, and block characters."""

    colours: bool = False
    blocks: bool = False


def paint(line: Line, width: int, look: Look) -> str:
    """A line with escape sequences, cut to the width; text of others is escaped."""
    codes = {**_ATTRIBUTES, **(_COLOURS if look.colours else {})}
    room, parts = width, []
    for span in line:
        text = one_line(span.text, 1 << 16)[:room]
        room -= len(text)
        code = "".join(codes.get(each, "") for each in span.style.split())
        parts.append(f"{code}{text}{_END}" if code and text else text)
    return "".join(parts)


def bar(part: float | None, columns: int, look: Look) -> str:
    """A bar of so many columns; blank for a value that is not measured."""
    blocks = _BLOCKS if look.blocks else _PLAIN
    steps = len(blocks) - 1
    filled = round(min(1.0, max(0.0, part or 0.0)) * columns * steps)
    whole, rest = divmod(filled, steps)
    return f"{blocks[-1] * whole}{blocks[rest] if rest else ''}".ljust(columns)


def level(part: float | None) -> str:
    """The style of a part of a card."""
    if part is None:
        return "dim"
    return "bad" if part >= _BAD else "fair" if part >= _FAIR else "good"


def draw(view: TopView, width: int, height: int, look: Look) -> Iterator[str]:
    """The lines of one picture; keeps the offsets of table and text in range."""
    usage = view.usage
    if usage is None:
        return
    lines: list[Line] = [[Span(summary(usage, width), "bold")], [Span(_status(view, usage))]]
    if height >= _GAUGES_FROM:
        lines.append(_gauges(usage, width, look))
    foot = _foot(view, width)[: max(1, height // 4)]
    room = max(1, height - len(lines) - len(foot))
    if view.pane is not None:
        lines += _text(view.pane, width, room)
    else:
        told = [[Span(each, "bad" if each.startswith("!") else "")] for each in warnings(view, usage)][
            : max(0, room - 4)
        ]
        lines += [*told, *_table(view, usage, width, max(1, room - len(told)), look)]
    lines = lines[: height - len(foot)]
    lines += [[]] * (height - len(foot) - len(lines))
    yield from (paint(line, width, look) for line in (*lines, *foot))


def _foot(view: TopView, width: int) -> Sequence[Line]:
    """The message, or the keys."""
    if view.message:
        return [[Span(each, "bad bold")] for each in _wrap(one_line(view.message, 1 << 12), width)[:_MESSAGE]]
    keys = list(_KEYS if view.pane is None else _TEXT_KEYS)
    while len(keys) > 1 and len("  ".join(keys)) > width:
        keys.pop()
    return [[Span("  ".join(keys), "dim")]]


def _status(view: TopView, usage: "Usage") -> str:
    parts = [f"{view.view.value} by {view.order}{' reversed' if view.reverse else ''}"]
    if view.filter or view.editing:
        parts.append(f"filter: {view.filter}{'_' if view.editing else ''}")
    if usage.fleet.failures:
        parts.append(f"no answer from {list_names([each.node for each in usage.fleet.failures], 2)}")
    return "   ".join(parts)


def _gauges(usage: "Usage", width: int, look: Look) -> Line:
    """How busy the cards are, how full their memory is, and what part of them pods hold."""
    sums = sums_of(usage)
    memory = sums.memory / sums.memory_total if sums.memory is not None and sums.memory_total else None
    columns = max(4, width // 3 - 18)
    line: list[Span] = []
    for name, part in (("busy", sums.busy), ("memory", memory), ("held", sums.held)):
        value = percent(part)
        line += [Span(f"{name} ["), Span(bar(part, columns, look), level(part)), Span(f"] {value:<5} ")]
    return line


def _table(view: TopView, usage: "Usage", width: int, room: int, look: Look) -> Iterator[Line]:
    rows = view.rows
    if not rows:
        yield [Span(empty(view, usage))]
        if view.filter:
            yield [Span("Escape clears the filter", "dim")]
        return
    shown = visible(len(rows), view.offset, max(1, room - 1), min(view.cursor, len(rows) - 1))
    view.offset = shown.start
    header, grid = _grid(view, [rows[at] for at in shown], width - 2, look)
    yield [Span(f"  {'  '.join(header)}".rstrip(), "bold")]
    for at, cells in zip(shown, grid, strict=True):
        at_cursor = at == view.cursor
        yield [Span("> " if at_cursor else "  ", "accent bold"), *_row(header, cells, rows[at], at_cursor=at_cursor)]


def _grid(view: TopView, rows: "Rows", width: int, look: Look) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """The header and the cells of these rows, as wide as their columns."""
    names, numbers, dropped = columns_of(view)
    header, cells, order = names, [cells_of(row) for row in rows], tuple(dropped)
    if view.view in {View.CARDS, View.PODS}:
        size = _WIDE_BAR if width >= _WIDE else _BAR
        bars = [[bar(part, size, look) for part in _parts(row)] for row in rows]
        header = _with_bars(names, _BUSY_BAR, _MEMORY_BAR)
        cells = [_with_bars(row, *drawn, header=names) for row, drawn in zip(cells, bars, strict=True)]
        order = (*dropped[:2], _MEMORY_BAR, *dropped[2:], _BUSY_BAR)
    shown, fitted = fit_terminal(header, cells, names=header[:1], dropped=order, width=width)
    kept = [[row[each] for each in shown] for row in fitted]
    right = frozenset(at for at, each in enumerate(shown) if header[each] in numbers)
    first, *grid = table_cells([header[each] for each in shown], kept, numbers=right)
    return first, grid


def _with_bars(cells: Sequence[str], busy: str, memory: str, *, header: Sequence[str] = ()) -> tuple[str, ...]:
    """The cells with a bar behind BUSY and one behind MEM GIB, which follow each other in every view."""
    at = (header or cells).index("BUSY") + 1
    return (*cells[:at], busy, cells[at], memory, *cells[at + 1 :])


def _parts(row: "CardRow | LeaseRow | ServiceRow | TeamRow") -> tuple[float | None, float | None]:
    """How busy the row's device is, and how full its memory."""
    if isinstance(row, ServiceRow | TeamRow):
        return row.busy, None
    if isinstance(row, CardRow):
        busy, memory, whole = row.busy, row.memory, row.memory_total
    else:
        busy, memory, whole = row.lease.busy, row.lease.memory, row.memory_limit
    return busy, memory / whole if memory is not None and whole else None


def _row(
    header: Sequence[str], cells: Sequence[str], row: "CardRow | LeaseRow | ServiceRow | TeamRow", *, at_cursor: bool
) -> Iterator[Span]:
    busy, memory = _parts(row)
    fault = "" if isinstance(row, CardRow | ServiceRow | TeamRow) else row.lease.fault
    styles: Mapping[str, Callable[[str], str]] = {
        "BUSY": lambda _: level(busy),
        _BUSY_BAR: lambda _: level(busy),
        "MEM GIB": lambda _: level(memory),
        _MEMORY_BAR: lambda _: level(memory),
        "STATE": lambda cell: _STATES.get(cell.strip(), ""),
        "FINDINGS": lambda cell: "fair" if cell.strip() != "-" else "",
        "POD": lambda _: "bad" if fault else "",
    }
    for at, (title, cell) in enumerate(zip(header, cells, strict=True)):
        gap = "  " if at else ""
        key = title.strip() or (_BUSY_BAR if at and header[at - 1].strip() == "BUSY" else _MEMORY_BAR)
        style = styles[key](cell) if key in styles else ""
        yield Span(f"{gap}{cell}", "cursor" if at_cursor else style)


def _text(pane: Pane, width: int, room: int) -> Iterator[Line]:
    """A text over the table; long lines are wrapped."""
    title = "keys" if pane.ask is None else pane.ask.title
    yield [Span(title, "accent bold"), Span("" if pane.answered else "   asking the cluster …", "dim")]
    lines = [part for line in pane.lines for part in _wrap(one_line(line, 1 << 14), width)]
    room = max(1, room - 1)
    pane.last = max(0, len(lines) - room)
    shown = visible(len(lines), pane.offset, room)
    for at in shown:
        yield [Span(lines[at])]


def _wrap(line: str, width: int) -> Sequence[str]:
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    return textwrap.wrap(line, max(20, width), subsequent_indent=indent, break_on_hyphens=False) or [""]
