"""``tessera top``: a live table of the use of cards."""

import asyncio
import contextlib
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from tessera.cli.base.connection import cluster_options, connect, own_namespace, report_errors
from tessera.cli.base.console import has_screen, say, shows_colours
from tessera.cli.base.grammar import (
    Output,
    colour_option,
    namespace_options,
    node_option,
    output_option,
    selected_pods,
    selector_option,
)
from tessera.cli.base.process import run_command

if TYPE_CHECKING:
    from tessera.clock import Clock
    from tessera.kube.client import Client
    from tessera.observe.reading import Usage
    from tessera.observe.service_rows import ServiceRow
    from tessera.observe.top_view import TopView, View
    from tessera.observe.usage_rows import CardRow, LeaseRow, TeamRow

#: Nodes from which on a change of slices is no reason to read all agents' pages at once: something always changes.
_WATCHED = 200
#: Seconds between two readings: an agent takes a sample every 10 s, and at once when slices or pods change.
_INTERVAL = 5.0


@click.command()
@click.option(
    "--by",
    type=click.Choice(["pods", "cards", "services", "teams"]),
    default="pods",
    show_default=True,
    help="What a row is.",
)
@click.option(
    "--sort",
    metavar="ORDER",
    default="name",
    show_default=True,
    help="name, busy or memory; for pods also held and wasted, for cards power and temperature; for services name,"
    " requests, waiting, busy, power, joules or findings; for teams name, held, busy, wasted or power.",
)
@namespace_options()
@selector_option
@node_option
@click.option("--once", is_flag=True, help="Print one table and end.  [default: if no terminal reads it]")
@click.option(
    "--interval",
    type=click.FloatRange(1, 3600),
    default=_INTERVAL,
    show_default=True,
    metavar="SECONDS",
    help="Time between two readings.",
)
@output_option("table")
@colour_option
@cluster_options
@report_errors
def command(
    *,
    by: str,
    sort: str,
    namespace: str | None,
    selector: str | None,
    nodes: tuple[str, ...],
    once: bool,
    interval: float,
    output: Output,
    colour: bool | None,
    kubeconfig: Path | None,
    context: str | None,
) -> None:
    """Show what cards and pods do: activity, memory, power, temperature, and the state of each lease.

    A row of services is a Deployment, StatefulSet or other owner whose pods hold or want cards. It has the ready pods,
    of those that the owner states; requests per second and waiting requests, by the pods' own pages; how many further
    pods fit now; when the next pod starts; what the cards do and draw; and findings: what is wrong with its pods, with
    the evidence below.

    A row of teams adds up the pods of the namespaces with the same value of the label that tessera install --team-label
    names; a namespace without it is a team of its own.

    On a terminal the table is live: the arrows move the cursor; Enter says why the pod or node is as it is, l shows the
    pod's log, d describes it; c shows cards, p pods, v services, t teams, s changes the order, / filters, o gives the
    live page's address, ? lists all keys, q quits. Elsewhere, and with TERM=dumb, the table is printed once. A value
    that nothing measures is n/a. Agents take a sample every 10 seconds.

    \b
    Examples:
      tessera top
      tessera top --by cards --sort power
      tessera top -n team-a --sort wasted --once
      tessera top --by services --sort findings
      tessera top --by services -n team-a -o json
      tessera top --by teams --sort wasted
    """
    from tessera.cli.base.usage import notes_of
    from tessera.cli.top.columns import table, warnings
    from tessera.observe.top_view import TopView, View

    view = TopView(view=View(by), order=sort)
    if sort not in view.orders:
        raise click.BadParameter(f"{sort!r} is no order of {by}; orders: {', '.join(view.orders)}", param_hint="--sort")
    if nodes and view.view is View.SERVICES:
        raise click.UsageError("--node shows pods or cards of a node; a service is of the cluster: leave --node out")
    if output.form == "name" and view.view is View.TEAMS:
        raise click.UsageError("-o name prints names of objects, and a team is none; take -o json")
    wanted = _Wanted(namespace, nodes, own_namespace(namespace, kubeconfig, context), selector)
    if not once and not output.for_programs and has_screen() and sys.stdin.isatty():
        run_command(_run_live(view, wanted, interval, kubeconfig, context, colours=shows_colours(colour)))
        return
    usage = run_command(_read_once(wanted, view.view, kubeconfig, context))
    rows, wide = view.select(usage), output.form == "wide"
    document: dict[str, object] = {"simulated": usage.simulated, by: rows, "silent": usage.fleet.failures}
    if view.view is View.SERVICES:
        document["note"] = usage.services_note
    if view.view is View.TEAMS:
        document["note"] = usage.teams_note
    lines = [*table(view, usage, wide=wide or view.view is not View.SERVICES), *warnings(view, usage, wide=wide)]
    output.show(document, lines, map(_object, rows))
    if notes := list(notes_of(usage)):
        say(*notes, err=True)


class _Wanted(NamedTuple):
    """What is asked for.

    Attributes:
        namespace: whose pods are shown; None for all.
        nodes: nodes that are shown; empty for all.
        home: the namespace in which a tenant has rights.
        selector: labels of the pods that are shown; None for all.
    """

    namespace: str | None
    nodes: Sequence[str]
    home: str
    selector: str | None

    async def read(self, client: "Client", *, services: bool = True, teams: bool = True) -> "Usage":
        """Reads the cluster, with services and teams if wanted; leases and services of other pods are left out."""
        import msgspec

        from tessera.cli.base.usage import read_or_explain, with_labels

        usage = await read_or_explain(client, self.nodes, namespace=self.home, services=services, teams=teams)
        usage = with_labels(usage, await selected_pods(client, self.selector, self.namespace, self.home))
        if self.namespace is None:
            return usage
        kept = [row for row in usage.leases if row.lease.namespace == self.namespace]
        own = [row for row in usage.services if row.namespace == self.namespace]
        return msgspec.structs.replace(usage, leases=kept, services=own)


async def _read_once(wanted: _Wanted, view: "View", kubeconfig: Path | None, context: str | None) -> "Usage":
    async with connect("tessera-top", kubeconfig, context) as client:
        return await wanted.read(client, services=view.value == "services", teams=view.value == "teams")


def _object(row: "CardRow | LeaseRow | ServiceRow | TeamRow") -> str:
    """What ``-o name`` writes."""
    from tessera.observe.usage_rows import CardRow, LeaseRow, TeamRow

    if isinstance(row, TeamRow):
        return row.team
    if isinstance(row, LeaseRow):
        return f"pod/{row.lease.pod}"
    return f"node/{row.node}" if isinstance(row, CardRow) else f"{row.kind.lower()}/{row.name}"


async def _run_live(
    view: "TopView", wanted: _Wanted, interval: float, kubeconfig: Path | None, context: str | None, *, colours: bool
) -> None:
    """Shows the table until the user quits. A cluster that stops answering leaves the last table with a note."""
    from tessera.cli.base.live_picture import read_values
    from tessera.cli.top.screen import Look
    from tessera.cli.top.terminal import show
    from tessera.clock import SystemClock

    clock, changed = SystemClock(), asyncio.Event()
    look = Look(colours=colours, blocks="utf" in (sys.stdout.encoding or "").lower())
    async with connect("tessera-top", kubeconfig, context) as client:
        watch = asyncio.create_task(_watch(client, clock, changed))
        try:
            await show(client, clock, view, look, read_values(lambda: wanted.read(client), clock, interval, changed))
        finally:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)


async def _watch(client: "Client", clock: "Clock", changed: asyncio.Event) -> None:
    """Sets the event when slices are made or destroyed; ends for a user who may not watch their records."""
    from tessera.api.instaslice import INSTASLICES
    from tessera.api.names import INSTASLICE_NAMESPACE
    from tessera.kube.errors import ApiError
    from tessera.kube.informer import Informer
    from tessera.kube.resources.meta import PartialObject, Resource

    with contextlib.suppress(ApiError, OSError):
        first = await client.page(INSTASLICES, INSTASLICE_NAMESPACE, limit=_WATCHED + 1)
        if len(first.items) > _WATCHED:
            return
        kind = INSTASLICES
        names = Resource(kind.group, kind.version, kind.plural, kind.kind, True, PartialObject)
        informer = Informer(client, names, namespace=INSTASLICE_NAMESPACE, clock=clock, rng=random.Random())
        informer.add_handler(lambda _: changed.set())
        await informer.run()
