"""Shared by ``tessera top`` and ``tessera idle``: reading the agents' pages, and cells of tables."""

import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from tessera import text
from tessera.cli.base.connection import CommandError
from tessera.cli.base.tenant_view import HIDDEN, HIDDEN_NAMES
from tessera.text import age, list_names

if TYPE_CHECKING:
    from tessera.kube.client import Client
    from tessera.observe.reading import Usage
    from tessera.observe.usage_rows import LeaseRow

#: Kinds of shares in words.
SHARES: Mapping[str, str] = {"time-slicing": "time slice", "mps": "MPS share"}
#: The text of a cell without a measurement.
NOT_MEASURED = "n/a"
#: Said of a node whose reason the user may not see.
SILENT = "its agent does not answer"
#: Said to a user without the right to read nodes.
NODES_UNKNOWN = (
    "You may not read nodes, so a node without an agent's pod may be missing here: ask for the ClusterRole"
    " tessera-cluster-view."
)
#: Seconds in an hour.
_HOUR = 3600.0


async def read_or_explain(
    client: "Client", nodes: Sequence[str] = (), *, namespace: str, services: bool = False, teams: bool = False
) -> "Usage":
    """Reads the agents' pages; with the rights of one namespace, what the API for tenants tells of them.

    Args:
        client: the user's client.
        nodes: names of nodes; empty for all.
        namespace: where a tenant has rights.
        services: read the services too.
        teams: read the teams too.

    Raises:
        CommandError: the user lacks a right, Tessera is not installed, or a named node has no agent.
    """
    from tessera.kube.errors import Forbidden
    from tessera.observe.reading import add_services, add_teams, read_usage

    tenant = False
    try:
        usage = await read_usage(client, nodes, partly=True)
    except Forbidden:
        usage, tenant = await _read_as_tenant(client, nodes, namespace), True
    if not usage.agents and not usage.fleet.failures:
        raise CommandError("error: no agent of Tessera runs in this cluster; run tessera install")
    found = {each.node for each in usage.fleet.nodes} | {each.node for each in usage.fleet.failures}
    if services and not tenant:
        usage = await add_services(client, usage)
    if teams:
        usage = await (_add_teams_as_tenant(client, usage, namespace) if tenant else add_teams(client, usage))
    missing = sorted(set(nodes) - found)
    if missing and tenant:
        raise CommandError(f"error: you have no pod on node {missing[0]!r}, so you may not see its cards")
    if missing:
        look = shlex.join(["tessera", "why", f"node/{missing[0]}"])
        raise CommandError(f"error: no agent of Tessera runs on node {missing[0]!r}; see {look}")
    return usage


async def _read_as_tenant(client: "Client", nodes: Sequence[str], namespace: str) -> "Usage":
    from tessera.access.agent_pages import FleetUsage
    from tessera.cli.base.tenant_view import read_as_tenant
    from tessera.dashboard.view.objects import USAGES
    from tessera.observe.reading import Usage
    from tessera.observe.usage_rows import card_rows, lease_rows

    answer = await read_as_tenant(client, USAGES, namespace)
    whole = answer.fleet
    fleet = FleetUsage(
        nodes=tuple(each for each in whole.nodes if not nodes or each.node in nodes),
        failures=tuple(each for each in whole.failures if not nodes or each.node in nodes),
    )
    return Usage(
        fleet=fleet,
        cards=card_rows(fleet.nodes),
        leases=lease_rows(fleet.nodes),
        agents=len(whole.nodes) + len(whole.failures),
        services=answer.services,
        services_note=answer.services_note,
    )


async def _add_teams_as_tenant(client: "Client", usage: "Usage", namespace: str) -> "Usage":
    import msgspec

    from tessera.cli.base.tenant_view import read_as_tenant
    from tessera.dashboard.view.objects import GPU_HOURS
    from tessera.kube.errors import ApiError
    from tessera.observe.reading import TEAMS_UNKNOWN
    from tessera.usage.record import decode_teams

    try:
        record = (await read_as_tenant(client, GPU_HOURS, namespace)).record
    except (ApiError, OSError) as error:
        return msgspec.structs.replace(usage, teams_note=f"{TEAMS_UNKNOWN}: {' '.join(str(error).split())}")
    return msgspec.structs.replace(usage, teams=decode_teams(record))


def with_labels(usage: "Usage", pods: frozenset[tuple[str, str]] | None) -> "Usage":
    """The reading with the leases of these pods, by namespace and name; with all if None."""
    import msgspec

    if pods is None:
        return usage
    kept = [row for row in usage.leases if (row.lease.namespace, row.lease.pod) in pods]
    owners = {(row.lease.namespace, row.owner) for row in kept}
    services = [
        row
        for row in usage.services
        if (row.namespace, f"{row.kind}/{row.name}") in owners
        or any((row.namespace, each) in pods for each in row.queued)
    ]
    return msgspec.structs.replace(usage, leases=kept, services=services)


def no_card_line(usage: "Usage") -> str:
    """What is said in place of rows while no card is known."""
    return "no card answers" if usage.agents else "no card answers; tessera doctor says whether Tessera is installed"


def notes_of(usage: "Usage") -> Iterator[str]:
    """A line for each node that did not answer, at most ten, and one about hidden names."""
    if any(each.node.startswith(HIDDEN) for each in usage.fleet.nodes):
        yield f"note: {HIDDEN_NAMES}"
    failures, now = usage.fleet.failures, time.time()
    for each in failures[:10]:
        yield f"warning: node {each.node} is not shown: {each.text(now) or SILENT}"
    if len(failures) > 10:
        yield f"warning: {len(failures) - 10} more nodes are not shown"
    if usage.unread:
        yield f"note: {usage.unread}"
    elif not usage.nodes_known:
        yield f"note: {NODES_UNKNOWN}"


def percent(value: float | None) -> str:
    """``43%``."""
    return NOT_MEASURED if value is None else text.percent(value)


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
