"""``tessera driver status``: each node's driver, the way it is installed, its progress, and the rejected ways."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import click
import msgspec

from tessera.api.nodes.node_marks import DriverPhase, RejectedStrategy
from tessera.cli.base.connection import cluster_options, report_errors
from tessera.cli.base.grammar import Output, node_names, output_option, watch_option
from tessera.cli.base.live_picture import read_or_watch
from tessera.cli.base.simulated_cluster import has_virtual_time
from tessera.clock import SystemClock, parse_rfc3339
from tessera.driver.node_facts import read_node_facts
from tessera.driver.node_status import read_status
from tessera.kube.client import Client
from tessera.kube.resources import NODES, Node
from tessera.text import age


@click.command()
@click.argument("nodes", nargs=-1, metavar="[NODE]...", callback=node_names)
@click.option("-v", "--verbose", is_flag=True, help="Show why better strategies were rejected, and whole digests.")
@watch_option
@output_option("table")
@cluster_options
@report_errors
def command(
    nodes: tuple[str, ...],
    *,
    verbose: bool,
    watches: bool,
    output: Output,
    kubeconfig: Path | None,
    context: str | None,
) -> int:
    """Show how each node with cards gets its driver.

    The table has the strategy, the image by digest, the version, the pool, the phase with its age, and the reason. The
    age is missing in a lab on virtual time; -o json has the moment. The command only reads, and needs the right to list
    nodes. The exit code is 1 if a node's driver has failed, or if no driver fits a node.

    \b
    Examples:
      tessera driver status
      tessera driver status gpu-1 -v
      tessera driver status -o json | jq -r '.[] | select(.phase != "ready") | .node'
    """
    found = read_or_watch(
        "tessera-driver",
        lambda client: _read(client, nodes),
        lambda found, _: status_lines(found, verbose=verbose),
        watches=watches,
        kubeconfig=kubeconfig,
        context=context,
    )
    output.show(found, status_lines(found, verbose=verbose), (f"node/{each.node}" for each in found))
    return 1 if any(map(is_stuck, found)) else 0


async def _read(client: Client, names: tuple[str, ...]) -> "list[NodeDriver]":
    every = [] if names else (await client.list(NODES)).items
    named = [await client.get(NODES, name) for name in names]
    found = [*every, *named]
    now = None if await has_virtual_time(client, found) else SystemClock().now()
    return node_drivers(found, now=now, named=bool(names))


_NOTHING = "-"
#: Characters of a digest that are shown.
_SHORT_DIGEST = 12


class NodeDriver(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One node's driver.

    Attributes:
        node: the node's name.
        strategy: the way the driver is installed; empty without a driver status of Tessera on the node.
        phase: the driver's progress; empty without a driver status.
        image: the image by digest.
        tag: the tag that was found.
        version: the version that was requested of this driver.
        wanted: the driver that the policy names now, if the node has another.
        pool: the node's pool as text.
        set: the driver set.
        since: begin of the phase, RFC 3339.
        seconds: age of the phase; None if it is unknown.
        reason: the reason for this strategy, or the awaited event.
        rejected: better strategies, best first.
        leaving: True if no policy selects the driver any more.
        offered: a better driver that is possible now.
    """

    node: str
    strategy: str = ""
    phase: str = ""
    image: str = ""
    tag: str = ""
    version: str = ""
    wanted: str = ""
    pool: str = ""
    set: str = ""
    since: str = ""
    seconds: int | None = None
    reason: str = ""
    rejected: tuple[RejectedStrategy, ...] = ()
    leaving: bool = False
    offered: str = ""


#: Fields that are as in the node's status.
_SAME = ("image", "tag", "version", "wanted", "pool", "set", "since", "rejected", "leaving", "offered")


def node_drivers(nodes: Iterable[Node], *, now: float | None, named: bool = False) -> list[NodeDriver]:
    """The drivers of nodes, sorted by name.

    Args:
        nodes: any nodes.
        now: seconds since 1970; None if the nodes are on virtual time.
        named: True keeps all nodes; False keeps only nodes with cards or with a driver status.
    """
    found = [_of(node, now) for node in nodes if named or _counts(node)]
    return sorted(found, key=lambda each: each.node)


def is_stuck(driver: NodeDriver) -> bool:
    """Returns True if the driver has failed or is blocked, so that a person must act."""
    return driver.phase in {DriverPhase.FAILED.value, DriverPhase.BLOCKED.value}


def status_lines(drivers: Sequence[NodeDriver], *, verbose: bool) -> Iterator[str]:
    """The table; with ``verbose`` each node's reasons below it."""
    if not drivers:
        yield "No node has a card according to its labels."
        return
    head = ("NODE", "STRATEGY", "PHASE", "SINCE", "VERSION", "POOL", "IMAGE")
    rows = [_row(each, verbose=verbose) for each in drivers]
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    yield _line(head, widths)
    for driver, row in zip(drivers, rows, strict=True):
        yield _line(row, widths)
        if verbose or driver.leaving or driver.wanted or driver.phase != DriverPhase.READY.value:
            yield from _reasons(driver, verbose=verbose)
        elif driver.offered:
            yield f"  offered: {driver.offered}"


def _counts(node: Node) -> bool:
    facts = read_node_facts(node)
    return facts.is_gpu or bool(facts.status_annotation)


def _of(node: Node, now: float | None) -> NodeDriver:
    name, status = node.metadata.name, read_status(read_node_facts(node).status_annotation)
    if status is None:
        reason = (
            "Tessera does not manage this node's driver: no ClusterPolicy selects the node, or none is in force yet."
        )
        return NodeDriver(node=name, reason=reason)
    same = {field: getattr(status, field) for field in _SAME}
    seconds = _seconds(status.since, now)
    strategy, phase = status.strategy.value, status.phase.value
    return NodeDriver(node=name, strategy=strategy, phase=phase, seconds=seconds, reason=status.text, **same)


def _seconds(since: str, now: float | None) -> int | None:
    try:
        return None if now is None else max(0, int(now - parse_rfc3339(since)))
    except ValueError:
        return None


def _row(driver: NodeDriver, *, verbose: bool) -> tuple[str, ...]:
    cells = (
        driver.strategy,
        driver.phase,
        age(driver.seconds) if driver.seconds is not None else "",
        driver.version,
        driver.pool,
        driver.image if verbose else _short(driver.image),
    )
    return (driver.node, *(each or _NOTHING for each in cells))


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "   ".join(f"{cell:{width}}" for cell, width in zip(cells, widths, strict=True)).rstrip()


def _reasons(driver: NodeDriver, *, verbose: bool) -> Iterator[str]:
    if driver.reason:
        yield f"  {driver.reason}"
    if verbose:
        yield from (f"  not {each.strategy.value}: {each.reason}" for each in driver.rejected)
    if driver.offered:
        yield f"  offered: {driver.offered}"


def _short(image: str) -> str:
    name, at, digest = image.partition("@sha256:")
    return f"{name}{at}{digest[:_SHORT_DIGEST]}"
