"""Columns of ``tessera top``: the cells of a row, the summary and the warnings, as text."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from tessera.cli.base.usage import NOT_MEASURED, device_of, gib_of, held_for, percent
from tessera.observe.top_view import TopView, View
from tessera.observe.usage_rows import CardRow
from tessera.text import count_noun

if TYPE_CHECKING:
    from tessera.observe.reading import Usage
    from tessera.observe.usage_rows import LeaseRow

#: Faults and excesses of memory that are shown.
_WARNINGS = 5


class Columns(NamedTuple):
    """The table of one view.

    Attributes:
        header: the titles.
        numbers: titles of columns that are aligned to the right.
        dropped: titles of columns that a narrow terminal does not show, the first one first.
    """

    header: Sequence[str]
    numbers: frozenset[str]
    dropped: Sequence[str]


CARDS = Columns(
    (
        *("CARD", "MODEL", "STATE", "BUSY", "MEM GIB", "POWER W", "TEMP C", "SM MHZ", "USED", "PODS"),
        "THROTTLED BY",
    ),
    frozenset({"BUSY", "MEM GIB", "POWER W", "TEMP C", "SM MHZ", "USED", "PODS"}),
    ("SM MHZ", "THROTTLED BY", "TEMP C", "PODS", "MODEL", "USED"),
)
PODS = Columns(
    ("POD", "CONTAINER", "OWNER", "DEVICE", "KIND", "SHARE", "BUSY", "MEM GIB", "STATE", "HELD"),
    frozenset({"SHARE", "BUSY", "MEM GIB"}),
    ("CONTAINER", "KIND", "HELD", "OWNER", "SHARE", "DEVICE"),
)


def columns_of(view: TopView) -> Columns:
    """The columns of what a row is."""
    return CARDS if view.view is View.CARDS else PODS


def cells_of(row: "CardRow | LeaseRow") -> tuple[str, ...]:
    """The cells of a row."""
    return _card_cells(row) if isinstance(row, CardRow) else _pod_cells(row)


def table(view: TopView, usage: "Usage", width: int = 0) -> list[str]:
    """The summary and all rows, as plain text."""
    from tessera.cli.base.table import fit_terminal, table_lines

    rows = view.select_cards(usage) if view.view is View.CARDS else view.select_leases(usage)
    lines = [summary(usage, width)]
    if not rows:
        return [*lines, "no card answers" if not usage.cards else f"no {view.view.value} to show"]
    header, numbers, dropped = columns_of(view)
    shown, cells = fit_terminal(header, list(map(cells_of, rows)), names=header[:1], dropped=dropped, width=width)
    lines += table_lines(
        [header[each] for each in shown],
        [[row[each] for each in shown] for row in cells],
        numbers=frozenset(at for at, each in enumerate(shown) if header[each] in numbers),
        width=width,
    )
    return lines


def warnings(usage: "Usage") -> list[str]:
    """What is wrong with the cards of the pods that are shown, with their use of it, and with free cards."""
    found = [f"{row.key} on {row.node}/{row.card}: {row.lease.fault}" for row in usage.leases if row.lease.fault]
    found += [
        f"{row.key} on {row.node}/{row.card}: {each.sentence}" for row in usage.leases for each in row.lease.findings
    ]
    shown = list(dict.fromkeys(found))
    more = [f"{len(shown) - _WARNINGS} more; see tessera health"] if len(shown) > _WARNINGS else []
    return [f"! {each}" for each in (*shown[:_WARNINGS], *more, *usage.blocked[:_WARNINGS])]


class Sums(NamedTuple):
    """Means and sums over the cards that are measured; None if none is."""

    busy: float | None
    measured: int
    memory: float | None
    memory_total: float | None
    power: float | None
    held: float


def sums_of(usage: "Usage") -> Sums:
    """The sums of a reading."""
    cards = usage.cards
    busy = [row.busy for row in cards if row.busy is not None]
    power = [row.power for row in cards if row.power is not None]
    memory = [row.memory for row in cards if row.memory is not None]
    whole = [row.memory_total for row in cards if row.memory_total is not None]
    return Sums(
        sum(busy) / len(busy) if busy else None,
        len(busy),
        sum(memory) if memory else None,
        sum(whole) if whole else None,
        sum(power) if power else None,
        sum(row.held for row in cards) / len(cards) if cards else 0.0,
    )


def summary(usage: "Usage", width: int = 0) -> str:
    """The sums; a narrow terminal shows the first of them."""
    cards, sums = usage.cards, sums_of(usage)
    pods = len({row.lease.uid for row in usage.leases})
    of = f", measured on {sums.measured} of {count_noun(len(cards), 'card')}"
    parts = [
        *(["simulated cards"] if usage.simulated else []),
        f"{count_noun(len(usage.fleet.nodes), 'node')}, {count_noun(len(cards), 'card')}, {count_noun(pods, 'pod')}",
        f"busy {percent(sums.busy)}{of if 0 < sums.measured < len(cards) else ''}",
        f"memory {gib_of(sums.memory, sums.memory_total)} GiB",
        f"power {sums.power:,.0f} W" if sums.power is not None else "power n/a",
    ]
    while width and len(parts) > 1 and len("   ".join(parts)) > width:
        parts.pop()
    return "   ".join(parts)


def _card_cells(row: "CardRow") -> tuple[str, ...]:
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
    limit = NOT_MEASURED if row.power_limit is None else f"{row.power_limit:.0f}"
    return NOT_MEASURED if row.power is None else f"{row.power:.0f}/{limit}"


def _pod_cells(row: "LeaseRow") -> tuple[str, ...]:
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
