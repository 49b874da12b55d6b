"""The objects that decide on the order of waiting pods, on who places whole cards, and on preferred nodes.

Labels of namespaces name queues and give whole cards to Tessera, Queues share the cards, PodGroups state the sizes of
gangs, LocalModelNodes the models of nodes. A user may lack the right to read some: what is missing counts as not there.
What the API server does not answer does too, and is named.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tessera.api.names import LAST_GATES, MODEL_LABEL
from tessera.api.pod_annotations import POD_GROUP_LABEL, POD_GROUPS, read_pod_group
from tessera.api.queues import QUEUES, read_queue
from tessera.explain.snapshot import OrderObjects
from tessera.kube.client import Client
from tessera.kube.errors import ApiError, Forbidden, NotFound, note_unanswered
from tessera.kube.resources import NAMESPACES, Pod

if TYPE_CHECKING:
    from tessera.controller.cluster.volumes import NodeModels


async def read_order_lists(client: Client, failed: dict[str, str] | None = None) -> OrderObjects:
    """Reads what does not depend on the pods: namespaces and Queues; ``failed`` takes what is not answered, and why."""
    namespaces, queues = await asyncio.gather(
        client.list_allowed(NAMESPACES, failed=failed), client.list_allowed(QUEUES, failed=failed)
    )
    return OrderObjects(namespaces=namespaces or (), queues=list(map(read_queue, queues or ())))


async def read_order_objects(
    client: Client, pods: Iterable[Pod], lists: OrderObjects | None = None, failed: dict[str, str] | None = None
) -> OrderObjects:
    """Reads the objects; PodGroups, owners of gates and models only if a pod names one.

    Args:
        client: the user's client.
        pods: pods of the cluster.
        lists: what :func:`read_order_lists` has read; None to read it now.
        failed: takes what the API server does not answer, and why; None to raise that.
    """
    found, groups, gates, models = await asyncio.gather(
        read_order_lists(client) if lists is None else asyncio.sleep(0, lists),
        read_pod_groups(client, pods, failed),
        read_last_gates(client, pods, failed),
        read_node_models(client, pods, failed),
    )
    return replace(found, pod_groups=groups, last_gates=gates, models=models)


async def read_pod_groups(
    client: Client, pods: Iterable[Pod], failed: dict[str, str] | None = None
) -> Mapping[str, int] | None:
    """The sizes of gangs that PodGroups state; read only if a pod names one, None if the cluster has none."""
    if not any(POD_GROUP_LABEL in pod.metadata.labels and pod.spec.scheduling_gates for pod in pods):
        return None
    try:
        items = (await client.list(POD_GROUPS)).items
    except (ApiError, OSError) as error:
        if not isinstance(error, Forbidden | NotFound):
            note_unanswered(POD_GROUPS.plural, error, failed)
        return None
    return dict(map(read_pod_group, items))


async def read_last_gates(client: Client, pods: Iterable[Pod], failed: dict[str, str] | None = None) -> frozenset[str]:
    """The gates of these pods that go after Tessera's, and whose owners the cluster has."""
    named = {each.name for pod in pods for each in pod.spec.scheduling_gates} & LAST_GATES.keys()
    try:
        return frozenset([gate for gate in sorted(named) if await client.serves(LAST_GATES[gate])])
    except (ApiError, OSError) as error:
        note_unanswered("owners of gates", error, failed)
        return frozenset()


async def read_node_models(
    client: Client, pods: Iterable[Pod], failed: dict[str, str] | None = None
) -> "Sequence[NodeModels]":
    """The models that KServe has brought to nodes; read only if a pod names one."""
    if not any(MODEL_LABEL in pod.metadata.labels for pod in pods):
        return ()
    from tessera.controller.cluster.volumes import LOCAL_MODEL_NODES, read_models  # few clusters have any

    items = await client.list_allowed(LOCAL_MODEL_NODES, failed=failed)
    return [found for each in items or () if (found := read_models(each)) is not None]
