"""A table of text with aligned columns, as kubectl prints one.

A library for tables wraps, frames and colours; these lines are piped to other programs, and each row is one line.
"""

from collections.abc import Iterator, Sequence

from tessera.text import one_line

#: Columns between two cells.
_GAP = "  "


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
