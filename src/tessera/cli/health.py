"""``tessera health``: the health of cards with evidence, holders and next step; explains errors."""

import shutil
import textwrap
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tessera.cli.base.connection import cluster_options, own_namespace, report_errors
from tessera.cli.base.grammar import (
    Output,
    namespace_options,
    node_names,
    output_option,
    selected_pods,
    selector_option,
    watch_option,
)
from tessera.cli.base.live_picture import read_or_watch
from tessera.cli.base.usage import NODES_UNKNOWN, SILENT
from tessera.text import age, count_noun, list_names, one_line

if TYPE_CHECKING:
    from tessera.api.nodes.health import CardHealth, Evidence, Holder
    from tessera.api.nodes.silence import SilentNode
    from tessera.kube.client import Client
    from tessera.observe.health_rows import FleetHealth, HealthRow, PodFindings, RuleState
    from tessera.observe.health_terms import Term

#: Exit code if a card is not allocated, or its health is not known; 1 is an error of the command.
NOT_HEALTHY = 2
#: Cards, and pods with findings, that the text shows; the worst cards come first.
_CARDS = 50
#: Columns of a line where the output is no terminal, and the most elsewhere.
_WIDTH = 100


@click.command()
@click.argument("node", required=False, callback=node_names)
@click.option(
    "--explain",
    "term",
    metavar="TERM",
    is_flag=False,
    flag_value="",
    help="Explain an XID by its number, or another error by its name, and end.",
)
@namespace_options()
@selector_option
@watch_option
@output_option("text")
@cluster_options
@report_errors
def command(
    *,
    node: str | None,
    term: str | None,
    namespace: str | None,
    selector: str | None,
    watches: bool,
    output: Output,
    kubeconfig: Path | None,
    context: str | None,
) -> int:
    """Show which cards are not well, why, who holds them, and what happens next.

    With NODE, the command lists every card of that node; without it, those of the cluster that are not healthy. It
    also names pods that use their card badly, with the measurements that show it. With -n or -l it lists only the cards
    and findings of those pods. A card is one of:

    \b
      healthy       nothing is wrong
      degraded      something is wrong, still allocated
      replace       still allocated; put another card in its place
      cordoned      a person took it out of service
      withheld      not allocated until its probes succeed for a while
      needs_reset   not allocated until it is reset
      needs_reboot  not allocated until the node is rebooted
      lost          the driver cannot reach it
      unknown       its agent has not listed it yet

    It reads the agents' pages, as tessera top does. A node is unknown, with the reason, if an agent should answer for
    it and does not: it has an agent's pod, Tessera's records, or a label of GPUs.

    The exit code is 0 if every card is allocated, 2 if a card is not or its health is not known, and 1 after an error.

    \b
    Examples:
      tessera health
      tessera health gpu-1
      tessera health -n team-a --watch
      tessera health --explain 79
      tessera health --explain hw_thermal
      tessera health -o json | jq -r '.cards[] | select(.allocated | not) | .uuid'
    """
    if term == "":
        raise click.UsageError(
            "--explain needs a term: the number of an XID, as in tessera health --explain 79, or the name of an error,"
            " as in tessera health --explain hw_thermal"
        )
    if term is not None:
        _explain(term, output)
        return 0
    home, of_pods = own_namespace(namespace, kubeconfig, context), not (namespace is None and selector is None)
    health = read_or_watch(
        "tessera-health",
        lambda client: _read(client, node, namespace, selector, home),
        lambda health, _: _lines(health, node, of_pods=of_pods),
        watches=watches,
        kubeconfig=kubeconfig,
        context=context,
    )
    names = dict.fromkeys(f"node/{row.node}" for row in health.cards)
    output.show(_document(health), _lines(health, node, of_pods=of_pods), names)
    return 0 if health.complete else NOT_HEALTHY


def _explain(word: str, output: Output) -> None:
    from tessera.observe.health_terms import explain_term

    term = explain_term(word)
    output.show(term, _term_lines(term), [f"term/{term.term}"])


def _term_lines(term: "Term") -> Iterator[str]:
    yield f"{term.term} {term.name}".rstrip()
    rows = {
        "meaning": term.meaning,
        "asks for": term.asks,
        "Tessera": term.reaction,
        "note": term.note,
        "source": term.source,
    }
    for title, text in rows.items():
        if text:
            yield from _wrap(text, f"  {title + ':':<10}", " " * 12)


async def _read(
    client: "Client", node: str | None, namespace: str | None, selector: str | None, home: str
) -> "FleetHealth":
    from tessera.cli.base.usage import read_or_explain
    from tessera.observe.health_rows import judge_fleet, of_pods

    usage = await read_or_explain(client, () if node is None else (node,), namespace=home)
    pods = await selected_pods(client, selector, namespace, home)
    if namespace is None and pods is None:
        return judge_fleet(usage.fleet, nodes_known=usage.nodes_known, blocked=usage.blocked, unread=usage.unread)

    def selects(pod_namespace: str, name: str) -> bool:
        return namespace in {None, pod_namespace} and (pods is None or (pod_namespace, name) in pods)

    return judge_fleet(of_pods(usage.fleet, selects), nodes_known=usage.nodes_known, unread=usage.unread)


# Text ---------------------------------------------------------------------------------------------------------------


def _lines(health: "FleetHealth", node: str | None, *, of_pods: bool = False) -> Iterator[str]:
    yield _summary(health, node, "these pods hold none" if of_pods else "none answers")
    yield from map(_rule_line, (rule for rule in health.rules if rule.spared))
    for sentence in health.blocked[:_CARDS]:
        yield from _wrap(sentence, "", "    ")
    cards = [row for row in health.cards if node is not None or row.health.state != "healthy"]
    for row in cards[:_CARDS]:
        yield from _card_lines(row)
    if len(cards) > _CARDS:
        nodes = sorted({row.node for row in cards[_CARDS:]})
        yield ""
        yield f"{len(cards) - _CARDS} more cards on {list_names(nodes)}; see tessera health NODE, or -o json"
    for silent in health.silent[:_CARDS]:
        yield from _silent_lines(silent)
    if len(health.silent) > _CARDS:
        yield ""
        yield f"{len(health.silent) - _CARDS} more nodes do not answer; see -o json"
    if health.unread or not health.nodes_known:
        yield ""
        yield from _wrap(f"Not known: {health.unread}" if health.unread else NODES_UNKNOWN, "", "    ")
    if health.findings:
        yield ""
        yield "Pods that use their card badly:"
        for each in health.findings[:_CARDS]:
            yield from _finding_lines(each)
        if len(health.findings) > _CARDS:
            yield f"  {len(health.findings) - _CARDS} more; see -o json"


def _summary(health: "FleetHealth", node: str | None, none: str) -> str:
    counts = health.counts
    parts = ", ".join(f"{number} {state.value}" for state, number in reversed(list(counts.items()))) or none
    where = f" of {node}" if node is not None else ""
    silent = f"; {count_noun(len(health.silent), 'node')} without an answer" if health.silent else ""
    simulated = " (simulated)" if health.simulated else ""
    return f"{count_noun(len(health.cards), 'card')}{where}{simulated}: {parts}{silent}"


def _rule_line(rule: "RuleState") -> str:
    from tessera.api.nodes.health import name_source

    return (
        f"Breaker open for {name_source(rule.rule)}: {rule.taken + rule.spared} cards report it:"
        f" {rule.taken} not allocated, {rule.spared} still allocated"
    )


def _card_lines(row: "HealthRow") -> Iterator[str]:
    health, now = row.health, row.taken
    since = f" for {age(now - health.since)}" if health.since else ""
    yield ""
    yield f"{row.node}/{row.index} {row.model}: {health.state}{since}"
    yield f"  {row.uuid}"
    for each in health.evidence:
        yield from _wrap(_evidence(each, now), "  ", "    ")
    if health.holders:
        names = [_holder(each) for each in health.holders]
        yield from _wrap(f"held by {list_names(names, len(names))}", "  ", "    ")
    if health.cut:
        yield f"  {health.cut} more errors and holders are not shown"
    if health.test:
        yield from _wrap(health.test, "  ", "    ")
    if _next(health):
        yield from _wrap(f"next: {_next(health)}", "  ", "    ")


def _evidence(each: "Evidence", now: float) -> str:
    """The sentence about an error, and when it was."""
    from tessera.api.nodes.health import describe_fault

    if each.count > 1:
        when = f" ({each.count} times, last {age(now - each.last)} ago)"
    elif each.last > each.since:
        when = f" (for {age(now - each.since)})"
    else:
        when = f" (once, {age(now - each.last)} ago)" if each.last else ""
    part = f"{each.part}: " if each.part else ""
    return f"{part}{describe_fault(each)}{when}"


def _next(health: "CardHealth") -> str:
    """What the sentences about the errors do not say of the next step."""
    from tessera.api.nodes.health import next_step

    told = {next_step(each) for each in health.evidence}
    first = next((each for each in told if health.next.startswith(each)), "")
    return health.next.removeprefix(first).lstrip("; ")


def _holder(holder: "Holder") -> str:
    if holder.pod:
        return f"{holder.namespace}/{holder.pod}"
    return f"process {holder.pid} ({holder.process or 'name not known'})"


def _silent_lines(node: "SilentNode") -> Iterator[str]:
    yield ""
    yield from _wrap(f"{node.node}: unknown: {node.text(time.time()) or SILENT}", "", "    ")
    if node.next:
        yield from _wrap(f"next: {node.next}", "  ", "    ")


def _finding_lines(each: "PodFindings") -> Iterator[str]:
    for finding in each.lease.findings:
        yield from _wrap(f"{each.lease.namespace}/{each.lease.pod}: {finding.sentence}", "  ", "    ")


def _wrap(text: str, first: str, others: str) -> Sequence[str]:
    from tessera.limits import FACT_SHOWN

    width = min(_WIDTH, shutil.get_terminal_size((_WIDTH, 24)).columns)
    return textwrap.wrap(
        one_line(text, FACT_SHOWN),
        max(40, width),
        initial_indent=first,
        subsequent_indent=others,
        break_on_hyphens=False,
    )


def _document(health: "FleetHealth") -> dict[str, object]:
    return {
        "simulated": health.simulated,
        "complete": health.complete,
        "counts": health.counts,
        "cards": health.cards,
        "silent": health.silent,
        "nodesKnown": health.nodes_known,
        "rules": health.rules,
        "blocked": health.blocked,
        "findings": [
            {
                "node": each.node,
                "namespace": each.lease.namespace,
                "pod": each.lease.pod,
                "container": each.lease.container,
                "device": each.lease.device,
                "findings": each.lease.findings,
            }
            for each in health.findings
        ],
    }
