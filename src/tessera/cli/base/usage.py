"""Shared by ``tessera top`` and ``tessera idle``: reading the agents' pages, and cells of tables."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tessera.cli.base.connection import CommandError
from tessera.cli.base.console import say
from tessera.text import age, list_names

if TYPE_CHECKING:
    from tessera.kube.client.client import Client
    from tessera.observe.reading import Usage
    from tessera.observe.usage_rows import LeaseRow

#: The text of a cell without a measurement.
NOT_MEASURED = "n/a"
#: Seconds in an hour.
_HOUR = 3600.0


async def read_or_explain(client: "Client", nodes: Sequence[str] = (), *, owners: bool = True) -> "Usage":
    """Reads the agents' pages.

    Raises:
        CommandError: the user lacks a right, Tessera is not installed, or a named node has no agent.
    """
    from tessera.kube.client.errors import Forbidden
    from tessera.observe.reading import read_usage

    try:
        usage = await read_usage(client, nodes, owners=owners)
    except Forbidden as error:
        raise CommandError(
            " ".join(str(error).split()),
            "This command needs the rights to list pods and to get pods/proxy in the namespace tessera-system:"
            " bind the ClusterRole tessera-usage-reader there",
        ) from error
    if not usage.agents:
        raise CommandError("error: no agent of Tessera runs in this cluster; run tessera install")
    found = {each.node for each in usage.fleet.nodes} | {each.node for each in usage.fleet.failures}
    missing = sorted(set(nodes) - found)
    if missing:
        raise CommandError(f"error: no agent of Tessera runs on node {missing[0]!r}; see tessera why node/{missing[0]}")
    return usage


def warn_of_failures(usage: "Usage") -> None:
    """Writes a line to standard error for each node that did not answer, at most ten."""
    failures = usage.fleet.failures
    for each in failures[:10]:
        say(f"warning: node {each.node} is not shown: {each.reason}", err=True)
    if len(failures) > 10:
        say(f"warning: {len(failures) - 10} more nodes are not shown", err=True)


def percent(value: float | None) -> str:
    """``43 %``."""
    return NOT_MEASURED if value is None else f"{value:.0%}"


def gib(value: float | None) -> str:
    """``12.5``, a number of GiB."""
    return NOT_MEASURED if value is None else f"{value / 2**30:.1f}"


def gib_of(value: float | None, whole: float | None) -> str:
    """``12.5/40.0``, in GiB."""
    return NOT_MEASURED if value is None else f"{gib(value)}/{gib(whole)}"


def gpu_hours(seconds: float) -> str:
    """``1.25``, from GPU-seconds."""
    return f"{seconds / _HOUR:.2f}"


def device_of(row: "LeaseRow") -> str:
    """``node-1/0 3g.20gb``: node, index of the card, and profile."""
    card = "?" if row.card is None else str(row.card)
    return f"{row.node}/{card} {row.profile}".rstrip()


def held_for(row: "LeaseRow") -> str:
    """``42m``."""
    return age(row.lease.held)


def simulated_note(usage: "Usage") -> Iterator[str]:
    """The line that says which nodes' cards are simulated."""
    names = [each.node for each in usage.fleet.nodes if each.simulated]
    if names:
        yield f"simulated cards on {list_names(names)}"
