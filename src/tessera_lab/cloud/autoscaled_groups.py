"""Node groups of a running lab, and the simulated autoscaler that scales them; ``tessera lab up --group``.

Cards of their nodes are offered whole, since the autoscaler counts ``nvidia.com/gpu`` and nothing else.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import msgspec

from tessera.api.mig_layouts import DISABLED
from tessera.api.names import MIG_CONFIG_LABEL
from tessera.limits import ECHOED
from tessera_lab.cloud.autoscaler.process import GPU_LABEL, ClusterAutoscaler
from tessera_lab.cloud.autoscaler.rules import AutoscalerTimers
from tessera_lab.cloud.cloud import Cloud
from tessera_lab.cloud.node_groups import NodeGroup, RandomDelay
from tessera_lab.cluster.cluster import SimulatedCluster
from tessera_lab.cluster.options import parse_nodes
from tessera_lab.limits import LAB_NODES
from tessera_lab.simulation.supervision import supervise

#: Sockets' paths have the node's name in them, which is the group's and six characters more.
LONGEST_NAME = 8

_GROUP = re.compile(r"(?P<name>[a-z]([a-z0-9-]*[a-z0-9])?)=(?P<node>.+?)(:(?P<minimum>\d{1,4})-(?P<maximum>\d{1,4}))?")


def parse_group(text: str) -> NodeGroup:
    """Parses the node group ``NAME=CARDS[:MIN-MAX]``; the default range is 0 to 10 nodes.

    Raises:
        ValueError: the form or a part is not valid; the text says which.
    """
    found = _GROUP.fullmatch(text)
    if found is None or len(found["name"]) > LONGEST_NAME:
        raise ValueError(
            f"group {text[:ECHOED]!r}: write NAME=CARDS or NAME=CARDS:MIN-MAX, for example gpu=4xA100-40GB:0-3;"
            f" the name has at most {LONGEST_NAME} of a-z, 0-9 and -"
        )
    nodes = parse_nodes(found["node"])
    if len(nodes) > 1 or not nodes[0].cards:
        raise ValueError(f"group {text[:ECHOED]!r}: its nodes are alike and have cards; write one node, as 4xA100-40GB")
    minimum, maximum = int(found["minimum"] or 0), int(found["maximum"] or 10)
    if not minimum <= maximum <= LAB_NODES or not maximum:
        raise ValueError(f"group {text[:ECHOED]!r}: {minimum}-{maximum} nodes; from 0 to {LAB_NODES}, the least first")
    return NodeGroup(
        name=found["name"],
        template=nodes[0],
        minimum=minimum,
        maximum=maximum,
        labels={GPU_LABEL: nodes[0].cards[0].lower()},
    )


def parse_groups(texts: Sequence[str]) -> list[NodeGroup]:
    """See :func:`parse_group`.

    Raises:
        ValueError: as there, or two groups have the same name.
    """
    groups = [parse_group(text) for text in texts]
    names = [group.name for group in groups]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"group {twice!r} is there twice; give each a name of its own")
    return groups


@asynccontextmanager
async def run_autoscaler(
    cluster: SimulatedCluster, groups: Sequence[NodeGroup], *, machine_seconds: float, idle_seconds: float
) -> AsyncIterator[None]:
    """Gives a running cluster the groups, and an autoscaler for them inside the block.

    Args:
        cluster: the cluster.
        groups: none for a cluster without an autoscaler.
        machine_seconds: from a request until a node registers.
        idle_seconds: how long an idle node stays, and how long after a scale-up no node is removed.
    """
    if not groups:
        yield
        return
    whole = {MIG_CONFIG_LABEL: DISABLED} if cluster.options.mig_config else {}
    cloud = Cloud(
        cluster,
        [
            msgspec.structs.replace(each, labels={**each.labels, **whole}, join=RandomDelay(mean=machine_seconds))
            for each in groups
        ],
    )
    timers = AutoscalerTimers(unneeded=idle_seconds, delay_after_add=idle_seconds)
    client = cluster.client("cluster-autoscaler")

    async def scale() -> None:
        await ClusterAutoscaler(client, cluster.hardware_clock, cloud, timers).run()

    async with cloud.running(), asyncio.TaskGroup() as tasks:
        task = tasks.create_task(supervise("cluster-autoscaler", scale, cluster.clock))
        try:
            yield
        finally:
            task.cancel()
