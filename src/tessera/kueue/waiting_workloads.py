"""Reads what waits in Kueue in all namespaces: two lists, and the places in the queues of some of the namespaces.

What is kept and asked for is bounded. Which namespaces come first is the caller's choice; the others are counted.
"""

from collections.abc import Collection, Mapping

import msgspec

from tessera.kube.client.client import Client
from tessera.kube.client.errors import Forbidden, NotFound
from tessera.kueue.objects import LOCAL_QUEUES, WORKLOADS, Workload, served_resource, served_version
from tessera.kueue.positions import PositionReader
from tessera.kueue.queue_reading import QueueReading
from tessera.limits.forecast import KUEUE_NAMESPACES, KUEUE_READ


class WaitingWorkloads(msgspec.Struct, frozen=True, kw_only=True):
    """The Workloads of all namespaces that wait.

    Attributes:
        installed: False if the cluster has no Kueue.
        namespaces: by namespace, its waiting Workloads with their positions; without flavors and pod sets.
        others: the number of waiting Workloads by further namespace.
        cut: True if the cluster has more than :data:`KUEUE_READ` Workloads, so that not all are read.
        forbidden: True if LocalQueues may not be listed, so that no places are known.
        silent: why places are not known, in words of Tessera alone; empty if they are.
        error: what Kueue's visibility API said instead of an answer.
    """

    installed: bool = True
    namespaces: Mapping[str, QueueReading] = {}
    others: Mapping[str, int] = {}
    cut: bool = False
    forbidden: bool = False
    silent: str = ""
    error: str = ""

    @property
    def some_places(self) -> bool:
        """True if places in some of the queues are known."""
        return any(each.sizes for each in self.namespaces.values())


async def read_waiting_workloads(
    client: Client, places: int, *, first: Collection[str] = (), account: str = "you"
) -> WaitingWorkloads:
    """Reads what waits in all namespaces.

    Args:
        client: the user's client.
        places: places that are read of a queue.
        first: the namespaces that come before others, if there are too many.
        account: whose rights the client has: ``you``.

    Raises:
        Forbidden: the user may not list Workloads of all namespaces.
        ApiError: the server refused for another reason.
    """
    try:
        version = await served_version(client)
        found, cut = await _list_waiting(client, version)
    except NotFound:
        return WaitingWorkloads(installed=False)
    queues = await _list_queues(client, version) if found else {}
    chosen = sorted(found, key=lambda name: (name not in first, name))[:KUEUE_NAMESPACES]
    positions = PositionReader(client, places, account)
    readings = {}
    for namespace in chosen:  # the number of answers about places is bounded
        known = frozenset((queues or {}).get(namespace, ()))
        asked = sorted({each.spec.queue_name for each in found[namespace]} & known)
        read = await positions.read(namespace, asked)
        readings[namespace] = QueueReading(
            workloads=found[namespace],
            queues=known,
            positions=read.places,
            sizes=read.sizes,
            silent=read.silent,
        )
    return WaitingWorkloads(
        namespaces=readings,
        others={name: len(found[name]) for name in sorted(found.keys() - readings.keys())},
        cut=cut,
        forbidden=queues is None,
        silent=positions.silent,
        error=positions.error,
    )


async def _list_waiting(client: Client, version: str) -> tuple[dict[str, list[Workload]], bool]:
    """The waiting Workloads by namespace, and if there are Workloads beyond those that were read."""
    found: dict[str, list[Workload]] = {}
    count, token = 0, ""
    while True:
        page = await client.page(served_resource(WORKLOADS, version), token=token)
        for each in page.items:
            if each.waits:
                found.setdefault(each.metadata.namespace, []).append(_without_pods(each))
        count += len(page.items) + len(page.undecodable)
        token = page.token
        if not token or count >= KUEUE_READ:
            return found, bool(token)


def _without_pods(item: Workload) -> Workload:
    """The same without pod templates, which are most of its size."""
    return msgspec.structs.replace(item, spec=msgspec.structs.replace(item.spec, pod_sets=()))


async def _list_queues(client: Client, version: str) -> dict[str, list[str]] | None:
    """Names of LocalQueues by namespace; None if they may not be listed."""
    found: dict[str, list[str]] = {}
    try:
        for each in (await client.list(served_resource(LOCAL_QUEUES, version))).items:
            found.setdefault(each.metadata.namespace, []).append(each.metadata.name)
    except Forbidden:
        return None
    return found
