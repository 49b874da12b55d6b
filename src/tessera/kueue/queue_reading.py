"""Reads what Kueue says about the workloads of one namespace: Workloads, queues, flavors, positions.

Only GET and LIST are used. What the user may not read is left out and named. Positions come from Kueue's visibility
API, of the version that the server prefers.
"""

from collections.abc import Mapping, Sequence
from typing import TypeVar

import msgspec

from tessera.kube.client.client import Client
from tessera.kube.client.errors import ApiError, Forbidden, NotFound
from tessera.kube.resources import ObjectMeta, Resource, Wire
from tessera.kueue.names import VISIBILITY_GROUP
from tessera.kueue.objects import LOCAL_QUEUES, RESOURCE_FLAVORS, WORKLOADS, Workload, served_resource, served_version

T = TypeVar("T")


class PendingWorkload(Wire, frozen=True, kw_only=True):
    """A Workload in a queue; positions begin with 0."""

    metadata: ObjectMeta = ObjectMeta()
    position_in_cluster_queue: int = 0
    position_in_local_queue: int = 0


class _Summary(Wire, frozen=True, kw_only=True):
    items: tuple[PendingWorkload, ...] = ()


class QueueReading(msgspec.Struct, frozen=True, kw_only=True):
    """Kueue's objects of one namespace, as one user may read them.

    Attributes:
        installed: False if the cluster has no Kueue.
        workloads: the Workloads of the namespace.
        queues: names of its LocalQueues.
        node_labels: the node labels of each flavor.
        positions: pending Workloads by name, of the queues that were asked about.
        forbidden: what the user may not read, as kubectl names it.
        silent: why the visibility API did not answer; empty if it did, or was not asked.
    """

    installed: bool = True
    workloads: Sequence[Workload] = ()
    queues: frozenset[str] = frozenset()
    node_labels: dict[str, dict[str, str]] = {}
    positions: dict[str, PendingWorkload] = {}
    forbidden: tuple[str, ...] = ()
    silent: str = ""

    def workload_of(self, *uids: str) -> Workload | None:
        """The Workload of an object, by the UIDs of the object and its controllers; None if there is none."""
        owned = (each for each in self.workloads if any(owner.uid in uids for owner in each.metadata.owner_references))
        return max(owned, key=lambda each: each.metadata.creation_timestamp or "", default=None)


async def read_queues(client: Client, namespace: str) -> QueueReading:
    """Reads everything; what is forbidden or missing is told in the result.

    Raises:
        ApiError: the server refused for another reason.
    """
    try:
        version = await served_version(client)
    except NotFound:
        return QueueReading(installed=False)
    forbidden: list[str] = []

    async def listed(resource: Resource[T], within: str | None = namespace) -> Sequence[T]:
        try:
            return (await client.list(served_resource(resource, version), within)).items
        except Forbidden:
            forbidden.append(resource.label)
        except NotFound:
            pass
        return ()

    workloads = await listed(WORKLOADS)
    local = await listed(LOCAL_QUEUES)
    flavors = await listed(RESOURCE_FLAVORS, None)
    asked = {each.spec.queue_name for each in workloads if not each.is_true("Admitted")}
    positions, silent = await _positions(client, namespace, sorted(asked & {each.metadata.name for each in local}))
    return QueueReading(
        workloads=workloads,
        queues=frozenset(each.metadata.name for each in local),
        node_labels={each.metadata.name: each.spec.node_labels for each in flavors},
        positions=positions,
        forbidden=tuple(forbidden),
        silent=silent,
    )


class WaitingWorkloads(msgspec.Struct, frozen=True, kw_only=True):
    """The Workloads of all namespaces that wait.

    Attributes:
        installed: False if the cluster has no Kueue.
        namespaces: by namespace, its waiting Workloads with their positions; without flavors.
        left_out: the number of further namespaces with Workloads that wait.
    """

    installed: bool = True
    namespaces: Mapping[str, QueueReading] = {}
    left_out: int = 0


async def read_waiting_workloads(client: Client, most: int) -> WaitingWorkloads:
    """Reads what waits in all namespaces: two lists, and the positions in each queue.

    Args:
        client: the user's client.
        most: of how many namespaces.

    Raises:
        Forbidden: the user may not list Workloads of all namespaces.
        ApiError: the server refused for another reason.
    """
    try:
        version = await served_version(client)
        listed = (await client.list(served_resource(WORKLOADS, version))).items
    except NotFound:
        return WaitingWorkloads(installed=False)
    found: dict[str, list[Workload]] = {}
    for each in listed:
        if each.waits:
            found.setdefault(each.metadata.namespace, []).append(each)
    forbidden: tuple[str, ...] = ()
    queues: set[tuple[str, str]] = set()
    try:
        local = (await client.list(served_resource(LOCAL_QUEUES, version))).items if found else ()
        queues = {(each.metadata.namespace, each.metadata.name) for each in local}
    except Forbidden:
        forbidden = (LOCAL_QUEUES.label,)
    readings = {}
    for namespace in sorted(found)[:most]:
        asked = sorted(
            {each.spec.queue_name for each in found[namespace] if (namespace, each.spec.queue_name) in queues}
        )
        positions, silent = await _positions(client, namespace, asked)
        readings[namespace] = QueueReading(
            workloads=found[namespace],
            queues=frozenset(name for within, name in queues if within == namespace),
            positions=positions,
            forbidden=forbidden,
            silent=silent,
        )
    return WaitingWorkloads(namespaces=readings, left_out=max(0, len(found) - most))


async def _positions(client: Client, namespace: str, queues: Sequence[str]) -> tuple[dict[str, PendingWorkload], str]:
    """The positions of all pending Workloads of these queues, and the reason that there are none."""
    found: dict[str, PendingWorkload] = {}
    if not queues:
        return found, ""
    try:
        version = await served_version(client, VISIBILITY_GROUP)
        for queue in queues:
            path = f"/apis/{VISIBILITY_GROUP}/{version}/namespaces/{namespace}/localqueues/{queue}/pendingworkloads"
            answer = await client.request("GET", path)
            items = msgspec.json.decode(answer.body, type=_Summary).items
            found |= {each.metadata.name: each for each in items}
    except Forbidden:
        return found, f"you may not get localqueues/pendingworkloads.{VISIBILITY_GROUP}"
    except NotFound:
        return found, "Kueue's visibility API is not served"
    except (ApiError, msgspec.DecodeError) as error:
        return found, f"Kueue's visibility API does not answer: {' '.join(str(error).split())}"
    return found, ""
