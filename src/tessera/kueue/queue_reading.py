"""Reads what Kueue knows about the Workloads of a namespace, with the rights of the caller.

Only GET and LIST are used. What the user may not read is left out and named.
"""

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from tessera.kube.client.client import Client
from tessera.kube.client.errors import Forbidden, NotFound
from tessera.kube.resources import Resource
from tessera.kueue.objects import LOCAL_QUEUES, RESOURCE_FLAVORS, WORKLOADS, Workload, served_resource, served_version
from tessera.kueue.positions import PendingWorkload, PositionReader, QueueSize

#: Most places in one queue of Kueue that `tessera why` and `tessera queue` read; the live page reads the first 1,000.
#: Ten answers of Kueue's visibility API.
KUEUE_PLACES = 10_000

T = TypeVar("T")


class QueueReading(msgspec.Struct, frozen=True, kw_only=True):
    """Kueue's objects of one namespace, as one user may read them.

    Attributes:
        installed: False if the cluster has no Kueue.
        workloads: the Workloads of the namespace.
        queues: names of its LocalQueues.
        node_labels: the node labels of each flavor; empty for a user who may not list flavors, as a member of a team.
        positions: pending Workloads by name, of the queues that were asked about.
        sizes: the number of pending Workloads by queue, of the queues that were asked about.
        forbidden: what the user may not read in the namespace, as kubectl names it.
        silent: why the visibility API did not answer; empty if it did, or was not asked.
    """

    installed: bool = True
    workloads: Sequence[Workload] = ()
    queues: frozenset[str] = frozenset()
    node_labels: dict[str, dict[str, str]] = {}
    positions: dict[str, PendingWorkload] = {}
    sizes: dict[str, QueueSize] = {}
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
            if within is not None:  # what the user may not read of the cluster is not missing in the namespace's queue
                forbidden.append(resource.label)
        except NotFound:
            pass
        return ()

    workloads = await listed(WORKLOADS)
    local = await listed(LOCAL_QUEUES)
    flavors = await listed(RESOURCE_FLAVORS, None)
    asked = {each.spec.queue_name for each in workloads if not each.is_true("Admitted")}
    queues = sorted(asked & {each.metadata.name for each in local})
    found = (await PositionReader(client, KUEUE_PLACES).read({namespace: queues}))[namespace]
    return QueueReading(
        workloads=workloads,
        queues=frozenset(each.metadata.name for each in local),
        node_labels={each.metadata.name: each.spec.node_labels for each in flavors},
        positions=found.places,
        sizes=found.sizes,
        forbidden=tuple(forbidden),
        silent=found.silent,
    )
