"""``tessera usage``: GPU-hours by namespace, team, user, label or model."""

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tessera.api.names import SYSTEM_NAMESPACE
from tessera.cli.base.connection import cluster_options, own_namespace, report_errors
from tessera.cli.base.console import say
from tessera.cli.base.durations import DAYS
from tessera.cli.base.grammar import Output, namespace_options, output_option, watch_option
from tessera.cli.base.inputs import read_text
from tessera.cli.base.live_picture import read_or_watch
from tessera.clock import SystemClock, rfc3339
from tessera.text import UserError, percent

if TYPE_CHECKING:
    from tessera.kube.client import Client
    from tessera.usage.report import CardHours, PriceList, UsageReport, UsageRow, UsageTotals

#: Part of the hours from which on their energy counts as all of it: a lease has none before its second sample.
_METERED = 0.95
#: The source of all hours, in words.
_SOURCE = "the controller's record"
#: What is said of a record that is not there, after its name.
_MISSING = "does not exist: the controller first writes it about two minutes after its first start"


@click.command()
@click.option(
    "--by",
    type=click.Choice(["namespace", "team", "user", "label", "model"]),
    default="namespace",
    show_default=True,
    help="What a row is.",
)
@click.option("--since", type=DAYS, default="7d", show_default=True, help="Length of the window until now: 7d, 12h.")
@namespace_options(multiple=True)
@click.option(
    "--prices",
    type=click.Path(path_type=Path, dir_okay=False, allow_dash=True),
    help="File with the price of a GPU-hour by model, for the cost.",
)
@click.option(
    "-l",
    "--selector",
    metavar="LABELS",
    help="Show pods with this value of the label that the record keeps: app.kubernetes.io/part-of=web.",
)
@watch_option
@output_option("table", "csv")
@cluster_options
@report_errors
def command(
    *,
    by: str,
    since: float,
    namespace: tuple[str, ...],
    prices: Path | None,
    selector: str | None,
    watches: bool,
    output: Output,
    kubeconfig: Path | None,
    context: str | None,
) -> None:
    """Show how many GPU-hours pods held: allocated, and of them active, idle and unknown.

    Half a card for two hours is 1.0; shares of a card sum to the card, and a MIG slice counts by its memory slots.
    ACTIVE is time in the state busy, IDLE in the states never_used, idle and resident, UNKNOWN could not be measured.
    KWH is the pods' part of their cards' energy; it begins with > where a part of the hours is not measured.
    For the whole cluster, allocated, free, unavailable and unknown hours sum to the capacity.

    A team is the value of the namespaces' label that tessera install --team-label names; a namespace without it is a
    team of its own. A user is what a pod states in the label, or else the annotation, tessera.dev/user: Kubernetes does
    not record who made a pod, and nobody checks the label.

    \b
    Examples:
      tessera usage
      tessera usage --by team
      tessera usage --by user --since 30d -n team-a
      tessera usage --by model --prices prices.yaml -o csv
    """
    from tessera.usage.report import Grouping, make_report, read_prices

    listed = None if prices is None else read_prices(read_text(prices))
    home = own_namespace(None, kubeconfig, context)

    async def read(client: "Client") -> "tuple[UsageTotals, UsageReport]":
        totals, namespaces = await _read(client, since, namespace, home)
        labels = None if selector is None else _values_of(totals, selector)
        return totals, make_report(totals, Grouping(by), namespaces=namespaces, labels=labels, prices=listed)

    totals, report = read_or_watch(
        "tessera-usage",
        read,
        lambda found, _: table(*found, listed),
        notes=lambda found: (f"note: {each}" for each in found[0].notes),
        watches=watches,
        kubeconfig=kubeconfig,
        context=context,
    )
    lines = _csv_lines(report, listed) if output.form == "csv" else table(totals, report, listed)
    output.show(_document(totals, report, listed), lines, (f"{by}/{row.name}" for row in report.rows))
    for note in totals.notes:
        say(f"note: {note}", err=True)


def _values_of(totals: "UsageTotals", text: str) -> frozenset[str]:
    """The values of the record's label that a selector chooses.

    Raises:
        UserError: it names another label; the record has one.
    """
    from tessera.kube.resources.selectors import parse_selector

    selector = parse_selector(text)
    other = next((each.key for each in selector.requirements if each.key != totals.label), None)
    if other is not None:
        kept = f"the label {totals.label} alone" if totals.label else "no label"
        raise UserError(f"-l {text}: the record keeps {kept} of pods; tessera controller --usage-label names another")
    values = {key.label for key in totals.rows}
    return frozenset(each for each in values if selector.matches({totals.label: each} if each else {}))


async def _read(
    client: "Client", since: float, namespaces: Sequence[str], home: str
) -> "tuple[UsageTotals, Sequence[str]]":
    """The totals of the controller's record, and the namespaces to report: a tenant may read of some only."""
    from tessera.kube.errors import Forbidden, NotFound
    from tessera.kube.resources import CONFIGMAPS
    from tessera.usage.record import RECORD_KEY, RECORD_NAME

    end, where = SystemClock().now(), f"ConfigMap {SYSTEM_NAMESPACE}/{RECORD_NAME}"
    try:
        found = await client.get(CONFIGMAPS, RECORD_NAME, SYSTEM_NAMESPACE)
    except NotFound:
        raise UserError(f"{where} {_MISSING}; is Tessera installed (tessera doctor), and does it run?") from None
    except Forbidden:
        return await _read_as_tenant(client, namespaces or (home,), end - since, end)
    text = found.data.get(RECORD_KEY, "")
    if not text:
        raise UserError(f"{where} has no key {RECORD_KEY}: delete it, and the controller begins anew")
    return _totals(text, where, end - since, end), namespaces


async def _read_as_tenant(
    client: "Client", namespaces: Sequence[str], begin: float, end: float
) -> "tuple[UsageTotals, Sequence[str]]":
    """The totals of namespaces from the API for tenants, each with the rights of that namespace."""
    import msgspec

    from tessera.cli.base.tenant_view import read_as_tenant
    from tessera.dashboard.view.objects import GPU_HOURS
    from tessera.kube.errors import NotFound

    try:
        texts = [(await read_as_tenant(client, GPU_HOURS, each)).record for each in namespaces]
    except NotFound:
        raise UserError(f"the record of GPU-hours {_MISSING}; if it stays so, ask an administrator") from None
    found = [_totals(text, "the record of GPU-hours", begin, end) for text in texts]
    rows = {key: row for each in found for key, row in each.rows.items()}
    teams = {namespace: team for each in found for namespace, team in each.teams.items()}
    return msgspec.structs.replace(found[0], rows=rows, teams=teams), namespaces


def _totals(text: str, where: str, begin: float, end: float) -> "UsageTotals":
    from tessera.usage.record import decode_record
    from tessera.usage.report import totals_of_record

    try:
        return totals_of_record(decode_record(text), begin, end)
    except ValueError as error:
        raise UserError(f"{where}: {error}; the controller sets it aside at its next start") from None


# Output


def table(totals: "UsageTotals", report: "UsageReport", prices: "PriceList | None") -> Iterator[str]:
    """The lines of the table, with the sums of the cards below."""
    from tessera.cli.base.console import table_lines

    yield f"{rfc3339(totals.begin)} to {rfc3339(totals.end)}, from {_SOURCE}"
    if totals.simulated:
        yield "simulated cards"
    digits = _digits(report.total.allocated)
    if totals.end <= totals.begin and not (totals.cards or totals.rows):
        yield (
            "Nothing is counted yet in this window: the controller counts once a minute, and writes the record every"
            " five minutes."
        )
        return
    if not report.rows:
        yield "No pod held a card in this window."
    else:
        title = totals.label if report.grouping.value == "label" and totals.label else report.grouping.value.upper()
        header = (title, "GPU-HOURS", "ACTIVE", "IDLE", "UNKNOWN", "PART", "KWH", *(["COST"] if prices else []))
        cells = [_cells(row, prices, digits) for row in (*report.rows, report.total)]
        yield from table_lines(header, cells, numbers=frozenset(range(1, len(header))))
    if report.cards is not None:
        yield ""
        yield from _card_lines(report.cards, digits)


def _digits(total: float) -> int:
    """Digits after the point: two, or four if all rows together are less than 1, so that small ones show."""
    return 4 if 0 < total < 1 else 2


def _cells(row: "UsageRow", prices: "PriceList | None", digits: int) -> Sequence[str]:
    hours = [f"{value:.{digits}f}" for value in (row.allocated, row.active, row.idle, row.unknown)]
    cost = [] if prices is None else [f"{row.cost or 0.0:.{digits}f} {prices.currency}".rstrip()]
    return (row.name, *hours, percent(row.part, 1), _energy(row), *cost)


def _energy(row: "UsageRow") -> str:
    """``1.25``; ``>1.25`` if a part of the hours is not metered."""
    if row.energy is None:
        return "n/a"
    return f"{'>' if row.metered < _METERED else ''}{row.energy:.{4 if row.energy < 1 else 2}f}"


def _card_lines(cards: "CardHours", digits: int) -> Iterator[str]:
    parts = {
        "allocated": cards.allocated,
        "free": cards.free,
        "unavailable": cards.unavailable,
        "unknown": cards.unknown,
    }
    whole = cards.capacity
    yield f"capacity     {whole:>12.{digits}f} GPU-hours"
    for name, value in parts.items():
        part = max(0.0, value) / whole if whole else 0.0
        yield f"{name:<12} {max(0.0, value):>12.{digits}f}   {percent(part, 1):>6}"


def _csv_lines(report: "UsageReport", prices: "PriceList | None") -> Sequence[str]:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = ["allocated", "active", "idle", "unknown"]
    cost = [f"cost_{prices.currency}".rstrip("_")] if prices is not None else []
    titles = [*(f"{name}_gpu_hours" for name in names), "part", "energy_kwh", "metered_part"]
    writer.writerow([report.grouping.value, *titles, *cost])
    for row in report.rows:
        values = [_spreadsheet(row.name), *(f"{getattr(row, name):.6f}" for name in names), f"{row.part:.6f}"]
        values += ["" if row.energy is None else f"{row.energy:.6f}", f"{row.metered:.6f}"]
        writer.writerow([*values, *([f"{row.cost or 0.0:.6f}"] if cost else [])])
    return text.getvalue().splitlines()


def _spreadsheet(name: str) -> str:
    """A name that no spreadsheet takes for a formula; users are text of tenants."""
    return f"'{name}" if name.startswith(("=", "+", "-", "@", "\t", "\r")) else name


def _document(totals: "UsageTotals", report: "UsageReport", prices: "PriceList | None") -> dict[str, Any]:
    return {
        "simulated": totals.simulated,
        "source": _SOURCE,
        "begin": rfc3339(totals.begin),
        "end": rfc3339(totals.end),
        "by": report.grouping.value,
        "label": totals.label,
        "teamLabel": totals.team_label,
        "currency": None if prices is None else prices.currency,
        "rows": report.rows,
        "total": report.total,
        "cards": report.cards,
        "models": report.models,
        "notes": totals.notes,
    }
