"""What a board shows, as plain values; :mod:`monitoring.boards.grafana` makes Grafana's JSON of them."""

from collections.abc import Sequence
from enum import Enum

import msgspec


class Kind(Enum):
    """How a panel shows its values: over time, over time on top of each other, or the last ones as numbers or bars."""

    CHART = "chart"
    STACK = "stack"
    NUMBER = "number"
    BARS = "bars"


class Query(msgspec.Struct, frozen=True):
    """A query of a panel.

    Attributes:
        expr: the expression.
        legend: name of each series.
        absent: why it usually returns nothing; empty if it always returns data.
    """

    expr: str
    legend: str = ""
    absent: str = ""


class Panel(msgspec.Struct, frozen=True):
    """A panel.

    Attributes:
        title: a noun, with the unit only if the unit is none of Grafana's.
        unit: Grafana's name of the unit.
        queries: what it shows.
        kind: how it shows it.
        meaning: text of its help; empty if the title says everything.
    """

    title: str
    unit: str
    queries: Sequence[Query]
    kind: Kind = Kind.CHART
    meaning: str = ""


class Variable(msgspec.Struct, frozen=True):
    """A choice at the top of a board: the values of a label of a series."""

    name: str
    series: str
    label: str


class Board(msgspec.Struct, frozen=True):
    """A board.

    Attributes:
        uid: its name in URLs, and of its file.
        title: its title.
        meaning: one sentence about it.
        variables: the choices.
        rows: panels by the title of their row.
    """

    uid: str
    title: str
    meaning: str
    variables: Sequence[Variable]
    rows: Sequence[tuple[str, Sequence[Panel]]]


def chart(title: str, unit: str, *queries: Query, meaning: str = "") -> Panel:
    """Values over time."""
    return Panel(title, unit, queries, Kind.CHART, meaning)


def stack(title: str, unit: str, *queries: Query, meaning: str = "") -> Panel:
    """Parts of a sum over time."""
    return Panel(title, unit, queries, Kind.STACK, meaning)


def number(title: str, unit: str, expr: str, *, legend: str = "", meaning: str = "", absent: str = "") -> Panel:
    """The last value."""
    return Panel(title, unit, (Query(expr, legend, absent),), Kind.NUMBER, meaning)


def bars(title: str, unit: str, *queries: Query, meaning: str = "") -> Panel:
    """The last values side by side."""
    return Panel(title, unit, queries, Kind.BARS, meaning)
