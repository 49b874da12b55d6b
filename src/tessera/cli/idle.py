"""``tessera idle``: cards and slices that are held and not used."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tessera.cli.base.connection import cluster_options, own_namespace, report_errors
from tessera.cli.base.console import say
from tessera.cli.base.grammar import (
    Output,
    namespace_options,
    node_option,
    output_option,
    selected_pods,
    selector_option,
    watch_option,
)
from tessera.cli.base.live_picture import read_or_watch
from tessera.text import count_noun

if TYPE_CHECKING:
    from tessera.kube.client import Client
    from tessera.observe.reading import Usage
    from tessera.observe.usage_rows import LeaseRow

_HEADER = ("GPU-HOURS", "STATE", "HELD", "POD", "CONTAINER", "OWNER", "DEVICE", "EVIDENCE")


@click.command()
@namespace_options()
@selector_option
@node_option
@click.option("--unknown", is_flag=True, help="Show also leases whose use cannot be measured.")
@watch_option
@output_option("table")
@cluster_options
@report_errors
def command(
    *,
    namespace: str | None,
    selector: str | None,
    nodes: tuple[str, ...],
    unknown: bool,
    watches: bool,
    output: Output,
    kubeconfig: Path | None,
    context: str | None,
) -> None:
    """List the cards, shares and slices that pods hold and do not use, the most wasted GPU-hours first.

    Each agent judges what containers do with their devices. STATE is never_used (no process since the start), idle (no
    process for 30 minutes), or resident (a process holds memory and computes nothing; an inference server may do so
    on purpose). GPU-HOURS is the time in these states since the agent started, weighed by the part of the card: half a
    card for two hours is 1.0. It begins once the state is known: of a card that was never used, ten minutes after the
    start. The command reports only; it stops nothing.

    \b
    Examples:
      tessera idle
      tessera idle -n team-a
      tessera idle -o json | jq '.leases[] | select(.state == "never_used")'
    """
    from tessera.cli.base.usage import notes_of

    home = own_namespace(namespace, kubeconfig, context)
    usage = read_or_watch(
        "tessera-idle",
        lambda client: _read(client, nodes, namespace, selector, home),
        lambda usage, _: idle_lines(usage, namespace=namespace, unknown=unknown),
        notes=notes_of,
        watches=watches,
        kubeconfig=kubeconfig,
        context=context,
    )
    rows = idle_rows(usage.leases, namespace=namespace, unknown=unknown)
    output.show(
        {"simulated": usage.simulated, "leases": [_document(row) for row in rows], "silent": usage.fleet.failures},
        idle_lines(usage, namespace=namespace, unknown=unknown),
        (f"pod/{row.lease.pod}" for row in rows),
    )
    if notes := list(notes_of(usage)):
        say(*notes, err=True)


async def _read(
    client: "Client", nodes: Sequence[str], namespace: str | None, selector: str | None, home: str
) -> "Usage":
    from tessera.cli.base.usage import read_or_explain, with_labels

    usage = await read_or_explain(client, nodes, namespace=home)
    return with_labels(usage, await selected_pods(client, selector, namespace, home))


def idle_rows(rows: Sequence["LeaseRow"], *, namespace: str | None, unknown: bool) -> list["LeaseRow"]:
    """The rows to list, the most wasted first; of equal ones the longest held."""
    from tessera.observe.usage_rows import WASTED_STATES

    states = {*WASTED_STATES, "unknown"} if unknown else set(WASTED_STATES)
    chosen = [
        row for row in rows if row.lease.state in states and (namespace is None or row.lease.namespace == namespace)
    ]
    return sorted(chosen, key=lambda row: (-row.lease.wasted, -row.lease.held, row.key))


def idle_lines(usage: "Usage", *, namespace: str | None, unknown: bool) -> Iterator[str]:
    """The table of :func:`idle_rows`, or a sentence instead, and how many leases cannot be judged."""
    from tessera.cli.base.console import table_lines
    from tessera.cli.base.usage import device_of, gpu_hours, held_for, no_card_line, simulated_note

    yield from simulated_note(usage)
    rows = idle_rows(usage.leases, namespace=namespace, unknown=unknown)
    judged = [row for row in usage.leases if namespace is None or row.lease.namespace == namespace]
    unjudged = [row for row in judged if row.lease.state == "unknown"]
    if not rows:
        silent = len(usage.fleet.failures)
        unknown_nodes = f" {count_noun(silent, 'node')} did not answer." if silent else ""
        if silent and not usage.cards:
            line = no_card_line(usage)
            yield f"{line[0].upper()}{line[1:]}.{unknown_nodes}"
            return
        yield _none_line(len(judged), len(unjudged), len(usage.cards), namespace) + unknown_nodes
        yield from _unknown_lines(unjudged)
        return
    cells = [
        (
            gpu_hours(row.lease.wasted),
            row.lease.state,
            held_for(row),
            row.key,
            row.lease.container or "-",
            row.owner or "-",
            device_of(row),
            row.lease.evidence,
        )
        for row in rows
    ]
    yield from table_lines(_HEADER, cells, numbers=frozenset({0, 2}))
    if not unknown:
        yield from _unknown_lines(unjudged)


def _none_line(judged: int, unjudged: int, cards: int, namespace: str | None) -> str:
    """The line instead of a table; it says no more than the states do."""
    where = "" if namespace is None else f" of namespace {namespace}"
    if not judged:
        return f"No pod{where} holds a card: 0 leases on {count_noun(cards, 'card')}."
    if not unjudged:
        return f"Every pod{where} uses what it holds: {count_noun(judged, 'lease')} on {count_noun(cards, 'card')}."
    used = judged - unjudged
    return (
        f"No lease{where} is known to be unused: {used} of {count_noun(judged, 'lease')} on {count_noun(cards, 'card')}"
        f" {'is' if used == 1 else 'are'} in use."
    )


def _unknown_lines(rows: Sequence["LeaseRow"]) -> Iterator[str]:
    """How many leases have no state, and why; nothing if all have one."""
    if not rows:
        return
    unmeasured = sum("cannot be measured" in row.lease.evidence for row in rows)
    young = len(rows) - unmeasured
    reasons = [f"the activity of {unmeasured} cannot be measured"] * bool(unmeasured)
    reasons += [f"{young} {'was' if young == 1 else 'were'} not watched for long enough"] * bool(young)
    yield (
        f"{count_noun(len(rows), 'lease')} cannot be judged ({', '.join(reasons)}): tessera idle --unknown lists"
        f" {'it' if len(rows) == 1 else 'them'}."
    )


def _document(row: "LeaseRow") -> dict[str, object]:
    lease = row.lease
    return {
        "namespace": lease.namespace,
        "pod": lease.pod,
        "uid": lease.uid,
        "container": lease.container,
        "owner": row.owner,
        "node": row.node,
        "card": row.card,
        "device": lease.device,
        "profile": row.profile,
        "kind": lease.kind,
        "share": lease.share,
        "state": lease.state,
        "evidence": lease.evidence,
        "heldSeconds": lease.held,
        "wastedGpuHours": lease.wasted / 3600,
    }
