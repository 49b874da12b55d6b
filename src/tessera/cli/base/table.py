"""A table of text with aligned columns, as kubectl prints one.

A library for tables wraps, frames and colours; these lines are piped to other programs, and each row is one line.
"""

from collections.abc import Iterator, Sequence

from tessera.text import one_line

#: Columns between two cells.
_GAP = "  "
#: Characters of a name that stay in a narrow terminal.
_SHORTEST = 16


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


def shorten_first(rows: Sequence[Sequence[str]], width: int) -> Sequence[Sequence[str]]:
    """The rows with names in the first column that take at most a third of a terminal; 0 shortens none."""
    room = max(_SHORTEST, width // 3)
    return [(one_line(row[0], room), *row[1:]) for row in rows] if width else rows


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
    cells = [list(header), *([one_line(cell) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    for row in cells:
        line = _GAP.join(
            cell.rjust(widths[column]) if column in numbers else cell.ljust(widths[column])
            for column, cell in enumerate(row)
        ).rstrip()
        yield f"{line[: width - 1]}>" if width and len(line) > width else line
