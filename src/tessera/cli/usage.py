"""``tessera usage``: GPU-hours by namespace, user, label or model."""

import asyncio
import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tessera.cli.base.connection import CommandError, cluster_options, connect, report_errors
from tessera.cli.base.console import say, say_json
from tessera.cli.base.inputs import DAYS, read_text
from tessera.clock import SystemClock, rfc3339
from tessera.text import percent

if TYPE_CHECKING:
    from tessera.kube.client.client import Client
    from tessera.usage.prices import PriceList
    from tessera.usage.report import CardHours, Grouping, UsageReport, UsageRow, UsageTotals
    from tessera.usage.sources import UsageSource

#: The key of pods' users, and of the label, unless the options name others; the controller has the same defaults.
_USER, _LABEL = "tessera.dev/user", "app.kubernetes.io/part-of"


@click.command()
@click.option(
    "--by",
    type=click.Choice(["namespace", "user", "label", "model"]),
    default="namespace",
    show_default=True,
    help="What a row is.",
)
@click.option("--since", type=DAYS, default="7d", show_default=True, help="Length of the window until now: 7d, 12h.")
@click.option("-n", "--namespace", "namespaces", metavar="NAME", multiple=True, help="Only this one; repeatable.")
@click.option(
    "--prices",
    type=click.Path(path_type=Path, dir_okay=False, allow_dash=True),
    help="File with the price of a GPU-hour by model, for the cost.",
)
@click.option(
    "--prometheus",
    metavar="PLACE",
    envvar="TESSERA_PROMETHEUS",
    show_envvar=True,
    help="A Prometheus that scrapes the agents, instead of the controller's record: its address, as"
    " http://localhost:9090, or its Service in the cluster, as monitoring/prometheus-server:80.",
)
@click.option(
    "--user", metavar="KEY", default=_USER, show_default=True, help="Pods' label of the user, for a Prometheus."
)
@click.option(
    "--label", metavar="KEY", default=_LABEL, show_default=True, help="Pods' label for --by label, for a Prometheus."
)
@click.option("-o", "--output", type=click.Choice(["table", "csv", "json"]), default="table", help="Output format.")
@cluster_options
@report_errors
def command(
    *,
    by: str,
    since: float,
    namespaces: tuple[str, ...],
    prices: Path | None,
    prometheus: str | None,
    user: str,
    label: str,
    output: str,
    kubeconfig: Path | None,
    context: str | None,
) -> None:
    """Show how many GPU-hours pods held: allocated, and of them active, idle and unknown.

    Half a card for two hours is 1.0; shares of a card sum to the card, and a MIG slice counts by its memory slots.
    ACTIVE is time in the state busy, IDLE in the states never_used, idle and resident, UNKNOWN could not be measured.
    For the whole cluster, allocated, free, unavailable and unknown hours sum to the capacity.

    A user is what a pod states in the label, or else the annotation, tessera.dev/user: Kubernetes does not record who
    made a pod, and nobody checks the label.

    \b
    Examples:
      tessera usage
      tessera usage --by user --since 30d -n team-a
      tessera usage --by model --prices prices.yaml -o csv
      tessera usage --prometheus http://localhost:9090
      tessera usage --prometheus monitoring/prometheus-server:80
    """
    from tessera.usage.prices import read_prices
    from tessera.usage.report import Grouping, make_report

    listed = None if prices is None else read_prices(read_text(prices))
    chooser = _SourceChooser(prometheus, {Grouping.USER: user, Grouping.LABEL: label})
    totals = asyncio.run(_read(chooser, Grouping(by), since, kubeconfig, context))
    report = make_report(totals, Grouping(by), namespaces=namespaces, prices=listed)
    if output == "json":
        say_json(_document(totals, report, listed))
    elif output == "csv":
        say(*_csv_lines(report, listed))
    else:
        say(*table(totals, report, listed))
    for note in totals.notes:
        say(f"note: {note}", err=True)


async def _read(
    chooser: "_SourceChooser", grouping: "Grouping", since: float, kubeconfig: Path | None, context: str | None
) -> "UsageTotals":
    from tessera.kube.client.errors import Forbidden

    end = SystemClock().now()
    async with AsyncExitStack() as stack:
        source = await chooser.choose(stack, kubeconfig, context)
        try:
            return await source.totals(end - since, end, grouping)
        except Forbidden as error:
            raise CommandError(" ".join(str(error).split()), await chooser.advice()) from error


class _SourceChooser:
    """Chooses the source: the Prometheus that the user names, or else the controller's record.

    No Service is looked for: whoever may create one in any namespace could write the report.

    Args:
        prometheus: address or Service of a Prometheus; ``None`` for the record.
        keys: the pods' labels for a Prometheus.
    """

    def __init__(self, prometheus: str | None, keys: "Mapping[Grouping, str]") -> None:
        self._prometheus = prometheus
        self._keys = keys
        #: The user's client; ``None`` for an address, and before the choice.
        self._client: Client | None = None

    async def choose(self, stack: AsyncExitStack, kubeconfig: Path | None, context: str | None) -> "UsageSource":
        """The source; what it needs to be asked is open as long as ``stack`` is."""
        from tessera.usage.prometheus import PrometheusSource
        from tessera.usage.prometheus_access import parse_service, query_address, query_service
        from tessera.usage.sources import RecordSource

        place = self._prometheus
        if place is not None and place.startswith(("http://", "https://")):
            query = await stack.enter_async_context(query_address(place))
            return PrometheusSource(query, f"Prometheus {place}", self._keys)
        service = None if place is None else parse_service(place)
        if place is not None and service is None:
            raise click.BadParameter(
                f"{place[:100]!r} is no address and no Service; write http://HOST:PORT or NAMESPACE/SERVICE:PORT",
                param_hint="--prometheus",
            )
        client = self._client = await stack.enter_async_context(connect("tessera-usage", kubeconfig, context))
        if service is None:
            return RecordSource(client)
        return PrometheusSource(query_service(client, service), service.label, self._keys)

    async def advice(self) -> str:
        """The right that lets this user read the source, and how to get it."""
        from tessera.cli.base.tenant_view import READ_PAGES, describe_role

        if self._prometheus is not None:
            return (
                "To ask a Service, you need the right get services/proxy in its namespace; or forward its port, and"
                " name the address: --prometheus http://localhost:9090"
            )
        role = await describe_role(self._client, READ_PAGES)
        return f"To get the ConfigMap usage-records in tessera-system, you need {role}"


# Output


def table(totals: "UsageTotals", report: "UsageReport", prices: "PriceList | None") -> Iterator[str]:
    """The lines of the table, with the sums of the cards below."""
    from tessera.cli.base.table import table_lines

    yield f"{rfc3339(totals.begin)} to {rfc3339(totals.end)}, from {totals.source}"
    if totals.simulated:
        yield "simulated cards"
    digits = _digits(report.total.allocated)
    if not report.rows:
        yield "No pod held a card in this window."
    else:
        title = totals.label if report.grouping.value == "label" and totals.label else report.grouping.value.upper()
        header = (title, "GPU-HOURS", "ACTIVE", "IDLE", "UNKNOWN", "PART", *(["COST"] if prices else []))
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
    return (row.name, *hours, percent(row.part, 1), *cost)


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
    writer.writerow([report.grouping.value, *(f"{name}_gpu_hours" for name in names), "part", *cost])
    for row in report.rows:
        values = [_spreadsheet(row.name), *(f"{getattr(row, name):.6f}" for name in names), f"{row.part:.6f}"]
        writer.writerow([*values, *([f"{row.cost or 0.0:.6f}"] if cost else [])])
    return text.getvalue().splitlines()


def _spreadsheet(name: str) -> str:
    """A name that no spreadsheet takes for a formula; users are text of tenants."""
    return f"'{name}" if name.startswith(("=", "+", "-", "@", "\t", "\r")) else name


def _document(totals: "UsageTotals", report: "UsageReport", prices: "PriceList | None") -> dict[str, Any]:
    return {
        "simulated": totals.simulated,
        "source": totals.source,
        "begin": rfc3339(totals.begin),
        "end": rfc3339(totals.end),
        "by": report.grouping.value,
        "label": totals.label,
        "currency": None if prices is None else prices.currency,
        "rows": report.rows,
        "total": report.total,
        "cards": report.cards,
        "models": report.models,
        "notes": totals.notes,
    }
