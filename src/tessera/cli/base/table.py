"""A table of text with aligned columns, as kubectl prints one.

A library for tables wraps, frames and colours; these lines are piped to other programs, and each row is one line.
"""

from collections.abc import Iterator, Sequence

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
