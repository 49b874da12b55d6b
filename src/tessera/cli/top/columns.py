"""Columns of ``tessera top``: the cells of a row, the summary and the warnings, as text."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from tessera.cli.base.usage import NOT_MEASURED, SHARES, device_of, gib_of, gpu_hours, held_for, no_card_line, percent
from tessera.observe.top_view import TopView, View
from tessera.observe.usage_rows import CardRow, LeaseRow, TeamRow
from tessera.text import age, count_noun

if TYPE_CHECKING:
    from tessera.observe.reading import Usage
    from tessera.observe.service_rows import ServiceFinding, ServiceRow

#: Faults and excesses of memory that are shown.
_WARNINGS = 5
#: Findings of services in a wide table: 50 services with each kind.
_ALL = 500


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
SERVICES = Columns(
    (
        *("SERVICE", "READY", "REQ/S", "WAITING", "ROOM", "NEXT START", "BUSY", "POWER W", "J/1000 REQ"),
        *("RUNNING", "KV CACHE", "TTFT P90 S", "FINDINGS"),
    ),
    frozenset({"READY", "REQ/S", "WAITING", "ROOM", "BUSY", "POWER W", "J/1000 REQ", "RUNNING", "KV CACHE"}),
    ("TTFT P90 S", "KV CACHE", "RUNNING", "J/1000 REQ", "POWER W", "BUSY", "NEXT START"),
)
#: Columns of services that only a wide table has.
_WIDE = frozenset({"RUNNING", "KV CACHE", "TTFT P90 S"})
PODS = Columns(
    ("POD", "CONTAINER", "OWNER", "DEVICE", "KIND", "SHARE", "BUSY", "MEM GIB", "STATE", "HELD"),
    frozenset({"SHARE", "BUSY", "MEM GIB"}),
    ("CONTAINER", "KIND", "HELD", "OWNER", "SHARE", "DEVICE"),
)


TEAMS = Columns(
    ("TEAM", "NAMESPACES", "PODS", "CARDS", "BUSY", "UNUSED", "WASTED GPU-H", "POWER W"),
    frozenset({"PODS", "CARDS", "BUSY", "UNUSED", "WASTED GPU-H", "POWER W"}),
    ("NAMESPACES", "POWER W", "UNUSED"),
)
#: Namespaces of a team that its row names.
_NAMED = 3


def columns_of(view: TopView) -> Columns:
    """The columns of what a row is."""
    return {View.CARDS: CARDS, View.PODS: PODS, View.SERVICES: SERVICES, View.TEAMS: TEAMS}[view.view]


def cells_of(row: "CardRow | LeaseRow | ServiceRow | TeamRow") -> tuple[str, ...]:
    """The cells of a row."""
    if isinstance(row, TeamRow):
        return _team_cells(row)
    if isinstance(row, LeaseRow):
        return _pod_cells(row)
    return _card_cells(row) if isinstance(row, CardRow) else _service_cells(row)


def table(view: TopView, usage: "Usage", width: int = 0, *, wide: bool = True) -> list[str]:
    """The summary and all rows, as plain text; ``wide`` for all columns."""
    from tessera.cli.base.console import fit_terminal, table_lines

    rows = view.select(usage)
    lines = [summary(usage, width)]
    if not rows:
        return [*lines, empty(view, usage)]
    header, numbers, dropped = columns_of(view)
    cells: Sequence[Sequence[str]] = [cells_of(row) for row in rows]
    if not wide:
        kept = [at for at, each in enumerate(header) if view.view is not View.SERVICES or each not in _WIDE]
        header, cells = [header[at] for at in kept], [[row[at] for at in kept] for row in cells]
    dropped = [each for each in dropped if each in header]
    shown, cells = fit_terminal(header, cells, names=header[:1], dropped=dropped, width=width)
    lines += table_lines(
        [header[each] for each in shown],
        [[row[each] for each in shown] for row in cells],
        numbers=frozenset(at for at, each in enumerate(shown) if header[each] in numbers),
        width=width,
    )
    return lines


def empty(view: TopView, usage: "Usage") -> str:
    """What is said in place of a table without rows."""
    if view.view is View.SERVICES:
        return (
            usage.services_note or "no service to show: no Deployment or other such owner has pods that ask for cards"
        )
    return no_card_line(usage) if not usage.cards else f"no {view.view.value} to show"


def _service_warnings(rows: "Sequence[ServiceRow]", most: int) -> list[str]:
    """The findings of services, with their evidence."""
    found = [
        f"! {row.namespace}/{each.pod} on {each.node}: {each.text}"
        f"{f' ({each.pods - 1} more of {row.kind}/{row.name})' if each.pods > 1 else ''}"
        for row in rows
        for each in row.findings
    ]
    more = [f"! {len(found) - most} more; see -o wide"] if len(found) > most else []
    return [*found[:most], *more]


def warnings(view: TopView, usage: "Usage", *, wide: bool = False) -> list[str]:
    """What is wrong with the cards of the pods that are shown, with their use of it, and with free cards.

    Args:
        view: what is shown; of services the findings stand here, with their evidence.
        usage: the reading.
        wide: all findings of services.
    """
    if view.view is View.SERVICES:
        rows = view.select_services(usage)
        notes = [f"! {usage.services_note}"] if usage.services_note and rows else []
        return [*notes, *_service_warnings(rows, _ALL if wide else _WARNINGS)]
    if view.view is View.TEAMS:
        return [f"! {usage.teams_note}"] if usage.teams_note else []
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
        f"memory {gib_of(sums.memory, sums.memory_total)} GiB" if sums.memory is not None else "memory n/a",
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


def _service_cells(row: "ServiceRow") -> tuple[str, ...]:
    from tessera.signals.page import ROOM_COUNTED

    return (
        row.key,
        f"{row.ready}/{row.wanted}",
        number(row.requests, 1),
        number(row.waiting),
        NOT_MEASURED if row.room is None else f"{row.room}{'+' if row.room >= ROOM_COUNTED else ''}",
        _next_start(row),
        percent(row.busy),
        number(row.power),
        number(row.joules),
        number(row.running),
        percent(row.kv_cache),
        number(row.first_token, 2),
        ", ".join([*map(_count, row.findings), *([f"unknown {row.unknown}"] if row.unknown else [])]) or "-",
    )


def _team_cells(row: TeamRow) -> tuple[str, ...]:
    named = ", ".join(row.namespaces[:_NAMED])
    more = len(row.namespaces) - _NAMED
    return (
        row.team,
        f"{named} and {more} more" if more > 0 else named,
        str(row.pods),
        f"{row.held:.2f}",
        percent(row.busy),
        f"{row.unused:.2f}",
        gpu_hours(row.wasted),
        number(row.power),
    )


def number(value: float | None, digits: int = 0) -> str:
    """``12.5``."""
    return NOT_MEASURED if value is None else f"{value:,.{digits}f}"


def _count(finding: "ServiceFinding") -> str:
    return finding.kind if finding.pods == 1 else f"{finding.kind} {finding.pods}"


def _next_start(row: "ServiceRow") -> str:
    """``in 4m``; ``-`` if no pod waits for a place."""
    if not row.starts:
        return "-"
    return NOT_MEASURED if row.start is None else f"in {age(max(0.0, row.start - time.time()))}"


def _pod_cells(row: LeaseRow) -> tuple[str, ...]:
    lease = row.lease
    return (
        row.key,
        lease.container or "-",
        row.owner or "-",
        device_of(row),
        SHARES.get(lease.kind, lease.kind),
        percent(lease.share),
        percent(lease.busy),
        gib_of(lease.memory, row.memory_limit),
        lease.state,
        held_for(row),
    )
