"""Reads the agents' pages, and the pods for the workloads that own them."""

from collections.abc import Sequence

import msgspec

from tessera.api.gpu_operator.settings_reader import SYSTEM_NAMESPACE
from tessera.api.nodes.agent_pod import AGENT_LABEL
from tessera.kube.client.client import Client
from tessera.kube.client.errors import Forbidden
from tessera.kube.resources import PODS, Pod
from tessera.observe.usage_rows import CardRow, LeaseRow, card_rows, lease_rows, owners_of
from tessera.usage.agent_pages import FleetUsage, read_fleet


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Use of the cluster's cards at one time.

    Attributes:
        fleet: the agents' pages.
        cards: a row for each card.
        leases: a row for each lease.
        agents: number of agents' pods; 0 where Tessera is not installed.
        owners_known: False if the user may not list pods of all namespaces, so that no lease names its workload.
    """

    fleet: FleetUsage
    cards: Sequence[CardRow]
    leases: Sequence[LeaseRow]
    agents: int
    owners_known: bool = True

    @property
    def simulated(self) -> bool:
        """True if cards of these nodes exist only in a lab."""
        return any(each.simulated for each in self.fleet.nodes)


async def read_usage(client: Client, nodes: Sequence[str] = (), *, owners: bool = True) -> Usage:
    """Reads the pages of all agents, or of those on ``nodes``.

    Args:
        client: the user's client.
        nodes: names of nodes; empty for all.
        owners: also read the pods, for the workloads that made them.

    Raises:
        Forbidden: the user may not list Tessera's pods, or not use their proxy.
    """
    label, value = AGENT_LABEL
    agents = (await client.list(PODS, SYSTEM_NAMESPACE, label_selector=f"{label}={value}")).items
    chosen = [pod for pod in agents if not nodes or pod.spec.node_name in nodes]
    fleet = await read_fleet(client, chosen)
    pods: Sequence[Pod] = ()
    known = True
    if owners:
        try:
            pods = (await client.list(PODS)).items
        except Forbidden:
            known = False
    return Usage(
        fleet=fleet,
        cards=card_rows(fleet.nodes),
        leases=lease_rows(fleet.nodes, owners_of(pods)),
        agents=len(agents),
        owners_known=known,
    )
