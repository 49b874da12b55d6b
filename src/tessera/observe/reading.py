"""Reads the agents' pages, and who should have answered."""

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from tessera.access.agent_pages import FleetUsage, read_fleet
from tessera.access.page_reader import PageReader
from tessera.api.instaslice import INSTASLICES, KIND_MISSING
from tessera.api.names import INSTASLICE_NAMESPACE, SYSTEM_NAMESPACE
from tessera.api.nodes.card_faults import read_withheld_holds
from tessera.api.nodes.health import TAKEN
from tessera.api.nodes.node_marks import AGENT_LABEL
from tessera.api.nodes.silence import NONE_SILENT, SilentNode, silent_nodes
from tessera.clock import SystemClock
from tessera.kube.client import Client
from tessera.kube.errors import ApiError, Forbidden, NotFound, describe_unanswered, note_unanswered
from tessera.kube.resources import CONFIGMAPS, NODES, PODS, Node, Pod
from tessera.kube.resources.meta import PartialObject, Resource
from tessera.observe.usage_rows import CardRow, LeaseRow, TeamRow, card_rows, lease_rows, team_rows

if TYPE_CHECKING:  # only a view of services needs them
    from tessera.observe.service_rows import ServiceRow

#: Begins the note of a reading without teams.
TEAMS_UNKNOWN = "each namespace is shown as a team, since the record of GPU-hours cannot be read"

#: Instaslice objects by name only: their slices are not needed here.
_OBJECTS = Resource(INSTASLICES.group, INSTASLICES.version, INSTASLICES.plural, INSTASLICES.kind, True, PartialObject)


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Use of the cluster's cards at one time.

    Attributes:
        fleet: the agents' pages, and the nodes that should have answered and did not.
        cards: a row for each card.
        leases: a row for each lease.
        agents: number of agents' pods; 0 where Tessera is not installed.
        nodes_known: False if the user may not read nodes, so that one without an agent's pod is missing everywhere.
        blocked: sentences about free devices that kube-scheduler gives to no pod.
        services: a row for each service.
        services_note: why the services are not known; empty if they are, or were not asked for.
        teams: team by namespace, where it is not the namespace itself.
        teams_note: why teams are not known; empty if they are, or were not asked for.
        unread: what the API server did not answer, in one line; empty if it answered all.
    """

    fleet: FleetUsage
    cards: Sequence[CardRow]
    leases: Sequence[LeaseRow]
    agents: int
    nodes_known: bool = True
    blocked: Sequence[str] = ()
    services: "Sequence[ServiceRow]" = ()
    services_note: str = ""
    teams: Mapping[str, str] = {}
    teams_note: str = ""
    unread: str = ""

    @property
    def team_rows(self) -> list[TeamRow]:
        """A row for each team."""
        return team_rows(self.leases, self.teams)

    @property
    def simulated(self) -> bool:
        """True if cards of these nodes exist only in a lab."""
        return any(each.simulated for each in self.fleet.nodes)


async def read_usage(client: Client, nodes: Sequence[str] = (), *, partly: bool = False) -> Usage:
    """Reads the pages of all agents, or of those on ``nodes``.

    Args:
        client: the user's client.
        nodes: names of nodes; empty for all.
        partly: leave out what the API server does not answer; the agents are needed.

    Raises:
        Forbidden: the user may not list Tessera's pods, or not read their pages.
    """
    failed: dict[str, str] | None = {} if partly else None
    label, value = AGENT_LABEL
    agents = (await client.list(PODS, SYSTEM_NAMESPACE, label_selector=f"{label}={value}")).items
    chosen = [pod for pod in agents if not nodes or pod.spec.node_name in nodes]
    read = await _read_nodes(client, nodes, failed)
    silent = None if read is None else await _find_silent(client, chosen, read, nodes, failed)
    fleet = await read_fleet(PageReader(client, SystemClock()), chosen, silent or NONE_SILENT)
    cards = card_rows(fleet.nodes)
    return Usage(
        fleet=fleet,
        cards=cards,
        leases=lease_rows(fleet.nodes),
        agents=len(agents),
        nodes_known=silent is not None,
        unread=describe_unanswered(failed or {}),
        blocked=tuple(_blocked(read or (), cards)),
    )


async def add_services(client: Client, usage: Usage) -> Usage:
    """The reading with the services, from the pages of the controller that leads."""
    from tessera.observe.queue_reading import page_or_reason, read_queue, read_signals
    from tessera.observe.service_rows import missing_services, service_rows

    reader = PageReader(client, SystemClock())
    signals = await page_or_reason(read_signals(client, reader))
    queue = await page_or_reason(read_queue(client, reader))
    rows = service_rows(signals, usage.fleet, queue)
    return msgspec.structs.replace(usage, services=rows, services_note=missing_services(signals))


async def add_teams(client: Client, usage: Usage) -> Usage:
    """The reading with the teams, from the controller's record of GPU-hours."""
    from tessera.usage.record import RECORD_KEY, RECORD_NAME, decode_teams

    try:
        record = (await client.get(CONFIGMAPS, RECORD_NAME, SYSTEM_NAMESPACE)).data.get(RECORD_KEY, "")
    except (ApiError, OSError) as error:
        return msgspec.structs.replace(usage, teams_note=f"{TEAMS_UNKNOWN}: {' '.join(str(error).split())}")
    return msgspec.structs.replace(usage, teams=decode_teams(record))


def _blocked(nodes: Iterable[Node], cards: Iterable[CardRow]) -> Iterator[str]:
    """The sentences about nodes on which something is free that kube-scheduler gives to no pod."""
    free = {card.node for card in cards if card.held < 1 and card.state not in TAKEN}
    for node in nodes:
        if node.metadata.name in free:
            yield from (hold.describe() for hold in read_withheld_holds(node).values())


async def _find_silent(
    client: Client, agents: Sequence[Pod], nodes: Sequence[Node], names: Sequence[str], failed: dict[str, str] | None
) -> dict[str, SilentNode]:
    """The nodes that should answer and do not, all or those of ``names``."""
    try:
        objects = {each.metadata.name for each in (await client.list(_OBJECTS, INSTASLICE_NAMESPACE)).items}
    except (ApiError, OSError) as error:
        if isinstance(error, NotFound) and agents and failed is not None:
            failed[INSTASLICES.plural] = KIND_MISSING
        elif not isinstance(error, Forbidden | NotFound):
            note_unanswered(INSTASLICES.plural, error, failed)
        objects = set()  # the other signs remain
    return silent_nodes(nodes, agents, objects.intersection(names) if names else objects)


async def _read_nodes(client: Client, names: Sequence[str], failed: dict[str, str] | None) -> Sequence[Node] | None:
    """The nodes, all or those of ``names``; None if the user may not read nodes."""
    found = []
    try:
        if not names:
            return (await client.list(NODES)).items
        for name in names:
            with contextlib.suppress(NotFound):
                found.append(await client.get(NODES, name))
    except (ApiError, OSError) as error:
        if not isinstance(error, Forbidden):
            note_unanswered(NODES.plural, error, failed)
        return None
    return found
