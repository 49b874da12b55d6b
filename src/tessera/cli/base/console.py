"""The only module that writes to the terminal; it escapes text of others.

A pod whose name the user may not see has an alias, ``~/~d12fa237``. Here it reads "another team", also in the words of
others; JSON keeps the alias, by which a program tells two such pods apart.

Names, annotations, messages and labels come from tenants and nodes. Every line passes through :mod:`tessera.text`,
which replaces control characters by escapes: they could clear the screen, forge a line or reorder the text. Commands
call these functions instead of ``print`` and ``click.echo``, which the linter forbids elsewhere in this package.

It prints tables with aligned columns, as kubectl does. A library for tables wraps, frames and colours; these lines are
piped to other programs, and each row is one line.
"""

import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, TextIO

import click

from tessera import text
from tessera.limits import LINE_SHOWN
from tessera.text import one_line

#: Columns between two cells.
_GAP = "  "
#: Characters of a name that stay in a narrow terminal as long as columns can be left out, and after that.
_SHORTEST, _LEAST = 16, 8


def fitting_columns(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, dropped: Sequence[str], width: int
) -> list[int]:
    """The numbers of the columns that fit a terminal.

    Args:
        header: titles of the columns.
        rows: the cells.
        dropped: titles of columns that may be left out, the first one first.
        width: columns of the terminal; 0 for no limit.
    """
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    found = list(range(len(header)))
    for title in dropped:
        if not width or sum(widths[each] for each in found) + len(_GAP) * (len(found) - 1) <= width:
            break
        found.remove(header.index(title))
    return found


def fit_terminal(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    names: Sequence[str],
    dropped: Sequence[str],
    width: int,
) -> tuple[list[int], Sequence[Sequence[str]]]:
    """Makes a table as narrow as a terminal: with shorter names, then without some columns, then with short names.

    Args:
        header: titles of the columns.
        rows: the cells.
        names: titles of columns whose cells may be shortened, the first one first.
        dropped: titles of columns that may be left out, the first one first.
        width: columns of the terminal; 0 for no limit.

    Returns:
        The numbers of the columns that stay, and all cells of the rows.
    """
    everything = list(range(len(header)))
    if not _excess(header, rows, everything, width):
        return everything, rows
    numbers = [header.index(each) for each in names if each in header]
    for at in numbers:
        rows = _shorten(rows, at, max(_SHORTEST, width // 3))
    columns = fitting_columns(header, rows, dropped=dropped, width=width)
    for at in (each for each in numbers if each in columns):
        widest = max(len(row[at]) for row in rows)
        room = widest - _excess(header, rows, columns, width)
        rows = _shorten(rows, at, min(widest, max(len(header[at]), _LEAST, room)))
    return columns, rows


def _excess(header: Sequence[str], rows: Sequence[Sequence[str]], columns: Sequence[int], width: int) -> int:
    """Columns by which the table is wider than the terminal."""
    widths = [max(len(row[at]) for row in (header, *rows)) for at in columns]
    return max(0, sum(widths) + len(_GAP) * (len(columns) - 1) - width) if width else 0


def _shorten(rows: Sequence[Sequence[str]], at: int, room: int) -> Sequence[Sequence[str]]:
    return [(*row[:at], one_line(row[at], room), *row[at + 1 :]) for row in rows]


def table_lines(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: frozenset[int] = frozenset(), width: int = 0
) -> Iterator[str]:
    """Yields the header and the rows.

    Args:
        header: titles of the columns.
        rows: the cells; control characters in them are escaped.
        numbers: columns that are aligned to the right.
        width: columns of the terminal; longer lines are cut. 0 cuts none.
    """
    for row in table_cells(header, rows, numbers=numbers):
        line = _GAP.join(row).rstrip()
        yield f"{line[: width - 1]}>" if width and len(line) > width else line


def table_cells(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: frozenset[int] = frozenset()
) -> Iterator[Sequence[str]]:
    """The header and the rows of :func:`table_lines` as cells, each as wide as its column."""
    cells = [list(header), *([one_line(cell) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    for row in cells:
        yield [
            cell.rjust(widths[column]) if column in numbers else cell.ljust(widths[column])
            for column, cell in enumerate(row)
        ]


#: Escape sequences of pictures and of progress lines: a colour, bold, dim, reversed, and their end. They take no
#: columns.
COLOUR = re.compile(r"(\x1b\[(?:[0127]|3[0-7]|38;5;[0-9]{1,3}|48;5;[0-9]{1,3}(?:;38;5;[0-9]{1,3})?)m)")

#: The alias of a pod (:meth:`tessera.visibility.Redactor.pod_key`), with the blanks of a table's cell after it.
_OTHERS_POD = re.compile(r"~/~[0-9a-f]{8}(  )?")


def _line(line: str) -> str:
    """A line as the terminal shows it."""
    return _OTHERS_POD.sub(_name_others, text.one_line(line, LINE_SHOWN))


def _name_others(alias: re.Match[str]) -> str:
    return "another team " if alias[1] else "another team"


def say(*lines: str, err: bool = False) -> None:
    """Writes each argument as one line of the terminal.

    Args:
        lines: the lines without their ends; a newline within one becomes an escape.
        err: write to standard error instead of standard output.
    """
    _write(map(_line, lines), err=err)


def say_tabbed(*lines: str) -> None:
    """As :func:`say`, but keeps tabs, by which another program's readers find its columns."""
    _write("\t".join(map(_line, line.split("\t"))) for line in lines)


def say_coloured(*lines: str) -> None:
    """As :func:`say`, but keeps the escape sequences of our colours and of bold text."""
    _write(map(_escape_but_colours, lines))


def _escape_but_colours(line: str) -> str:
    return "".join(piece if at % 2 else _line(piece) for at, piece in enumerate(COLOUR.split(line)))


def say_live(line: str) -> None:
    """Replaces the terminal's current line and leaves the cursor in it; an empty line clears it."""
    sys.stdout.write(f"\r\x1b[K{_line(line)}")
    sys.stdout.flush()


def write_frame(frame: Iterable[str], *, begin: bool = False, end: bool = False, colours: bool = False) -> None:
    """Replaces the picture of a full-screen program.

    Args:
        frame: its lines; each must fit the width of the terminal.
        begin: first switch to the terminal's alternate screen, and hide the cursor.
        end: switch back instead.
        colours: keep the escape sequences of our colours.
    """
    if end:
        sys.stdout.write("\x1b[?25h\x1b[?1049l")
    else:
        start = "\x1b[?1049h\x1b[?25l" if begin else ""
        shown = "\r\n".join(f"{_escape_but_colours(line) if colours else _line(line)}\x1b[K" for line in frame)
        sys.stdout.write(f"{start}\x1b[H{shown}\x1b[J")
    sys.stdout.flush()


def say_document(document: str, *, err: bool = False) -> None:
    """Writes a generated text of several lines: a manifest, a build file, a table."""
    _write(text.lines(document.removesuffix("\n").expandtabs(), sys.maxsize - 1), err=err)


def say_json(value: Any) -> None:
    """Writes a value as indented JSON."""
    import msgspec

    say_json_text(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def say_json_text(document: str) -> None:
    """Writes encoded JSON."""
    _write([text.json(document)])


def print_error(error: click.ClickException) -> None:
    """Writes a command's error as kubectl does; an error of the command line names the command that shows help."""
    message = (
        " ".join(error.format_message().split())
        if isinstance(error, click.MissingParameter)
        else error.format_message()
    )
    if isinstance(error, click.UsageError) and error.ctx is not None:
        end = "" if message.endswith("?") else ";"
        message = f"{message.rstrip('.')}{end} see '{error.ctx.command_path} --help'"
    if not message.startswith(("error: ", "Error from server")):
        message = f"error: {message}"
    _write(text.lines(message, LINE_SHOWN), err=True)


def has_screen() -> bool:
    """Returns True if standard output is a terminal that can draw anywhere on its screen."""
    return sys.stdout.isatty() and os.environ.get("TERM") not in {"", "dumb"}


def shows_colours(wanted: bool | None = None) -> bool:
    """Returns what the user wants; without an option, True for a terminal with colours unless ``NO_COLOR`` is set."""
    return has_screen() and not os.environ.get("NO_COLOR") if wanted is None else wanted


def tolerate_any_encoding() -> None:
    """Writes characters that the terminal's encoding lacks as escapes, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, ValueError):  # a replaced stream, or a closed one
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]


def _write(lines: Iterable[str], *, err: bool = False) -> None:
    stream: TextIO = sys.stderr if err else sys.stdout
    print("\n".join(lines), file=stream, flush=True)
