"""A cluster with an autoscaler and one node group of no node, which Tessera knows."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from tests.cluster.new_nodes import Nodes

from tessera.api.names import MIG_CONFIG_LABEL
from tessera.api.sharing.profile import PROFILE_LABEL
from tessera.kube.resources import CONFIGMAPS, PODS, Pod
from tessera_lab.cloud.autoscaler.process import ClusterAutoscaler
from tessera_lab.cloud.autoscaler.rules import ActionKind, AutoscalerTimers
from tessera_lab.cloud.cloud import Cloud
from tessera_lab.cloud.node_groups import NodeGroup, RandomDelay
from tessera_lab.cluster.options import LabNodeSpec

GROUPS = """
groups:
  - name: pairs
    selector: {pool: pairs}
    cards: {model: A100-40GB, count: 2}
"""
#: The same group, whose cards are not cut.
WHOLE = GROUPS.replace("count: 2}", "count: 2, kind: whole}")
#: The same group, whose cards are shared by four.
SHARES = GROUPS.replace("count: 2}", "count: 2, kind: shares, replicas: 4}")
#: The labels by which the nodes of a group offer what the file says.
LABELS = {GROUPS: {MIG_CONFIG_LABEL: "dynamic"}, WHOLE: {}, SHARES: {PROFILE_LABEL: "slice-4"}}


#: A machine of the group.
PAIR = NodeGroup(
    name="pairs",
    template=LabNodeSpec(name="", cards=("A100-40GB",) * 2),
    maximum=10,
    labels={"pool": "pairs"},
    vm=RandomDelay(mean=90),
    join=RandomDelay(mean=60),
)


@asynccontextmanager
async def autoscaled(
    lab: Nodes, groups: str = GROUPS, *, unneeded: float = 86400, **machine: Any
) -> AsyncIterator[ClusterAutoscaler]:
    """Runs the autoscaler.

    Args:
        lab: the cluster.
        groups: what Tessera is told.
        unneeded: seconds for which an idle node stays.
        machine: what the group's machines have in place of :data:`PAIR`'s; labels are added.
    """
    await lab.client.create(
        CONFIGMAPS, {"metadata": {"name": "tessera-node-groups"}, "data": {"groups.yaml": groups}}, "tessera-system"
    )
    labels = {**PAIR.labels, **LABELS.get(groups, LABELS[GROUPS]), **machine.pop("labels", {})}
    cloud = Cloud(lab.cluster, [msgspec.structs.replace(PAIR, labels=labels, **machine)])
    timers = AutoscalerTimers(unneeded=unneeded)
    scaler = ClusterAutoscaler(lab.cluster.client("cluster-autoscaler"), lab.cluster.hardware_clock, cloud, timers)
    async with cloud.running():
        task = asyncio.create_task(scaler.run())
        try:
            yield scaler
        finally:
            task.cancel()


async def placeholders(lab: Nodes) -> list[Pod]:
    pods = (await lab.client.list(PODS, "tessera-system")).items
    return [pod for pod in pods if pod.metadata.labels.get("app.kubernetes.io/name") == "tessera-placeholder"]


def made(scaler: ClusterAutoscaler) -> int:
    return sum(action.count for _, action in scaler.actions if action.kind is ActionKind.INCREASE)
