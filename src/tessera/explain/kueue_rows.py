"""What waits in Kueue, for ``tessera queue``: each Workload with its position, and its reason in plain words.

A Job that Kueue holds has no pods yet, so the controller's queue does not know it. Only Workloads that Kueue has not
admitted are rows; the pods of the others are in the controller's queue.
"""

from collections.abc import Iterator, Mapping

import msgspec

from tessera.clock import parse_time_or_zero
from tessera.explain.queue import explain_workload_in_queue
from tessera.kube.client.client import Client
from tessera.kube.client.errors import ApiError, Forbidden
from tessera.kueue.objects import Workload
from tessera.kueue.queue_reading import QueueReading, WaitingWorkloads, read_queues, read_waiting_workloads
from tessera.limits.forecast import KUEUE_NAMESPACES


class KueueRow(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A Workload that waits.

    Attributes:
        namespace: its namespace.
        workload: its name.
        owner: what it is for, ``Job/train``; the name alone of a pod; empty if nothing owns it.
        queue: its LocalQueue.
        since: when it was created, seconds since 1970.
        position: its place in the LocalQueue, from 1; 0 if it is not known.
        of: the number of pending Workloads of that queue.
        among_all: its place among all queues that share the quota, from 1; 0 if it is not known.
        case: the kind of waiting, as ``tessera why`` has it.
        verdict: why it waits.
    """

    namespace: str
    workload: str
    owner: str = ""
    queue: str = ""
    since: float = 0.0
    position: int = 0
    of: int = 0
    among_all: int = 0
    case: str = ""
    verdict: str = ""


class KueueRows(msgspec.Struct, frozen=True, kw_only=True):
    """All of them.

    Attributes:
        rows: in the order of their queues.
        notes: what the user may not read, and what does not answer.
    """

    rows: tuple[KueueRow, ...] = ()
    notes: tuple[str, ...] = ()


async def read_kueue_rows(client: Client, namespace: str | None, now: float) -> KueueRows:
    """Reads what waits in Kueue; nothing where Kueue is not installed.

    Args:
        client: the user's client.
        namespace: whose Workloads; None for all.
        now: seconds since 1970.
    """
    try:
        if namespace is None:
            found = await read_waiting_workloads(client, KUEUE_NAMESPACES)
        else:
            found = WaitingWorkloads(namespaces={namespace: await read_queues(client, namespace)})
    except Forbidden:
        return KueueRows(notes=("you may not list Kueue's workloads of all namespaces: name one with -n",))
    except (ApiError, OSError) as error:
        return KueueRows(notes=(f"Kueue's queues are not shown: {' '.join(str(error).split())}",))
    return rows_of(found, now)


def rows_of(found: WaitingWorkloads, now: float) -> KueueRows:
    """Returns the rows of all namespaces, and what they do not have."""
    rows = [row for reading in found.namespaces.values() for row in kueue_rows(reading, now)]
    notes = list(_notes(found.namespaces))
    if found.left_out:
        notes.insert(0, f"Kueue's queues of {found.left_out} further namespaces are not shown")
    return KueueRows(rows=tuple(rows), notes=tuple(dict.fromkeys(notes)))


def kueue_rows(reading: QueueReading, now: float) -> Iterator[KueueRow]:
    """Yields the rows of one namespace, those of a queue in its order, Workloads without a position last."""
    waiting = [each for each in reading.workloads if each.waits]
    rows = [_row(reading, each, now) for each in waiting]
    yield from sorted(rows, key=lambda row: (row.queue, row.position or len(rows) + 1, row.since, row.workload))


def _row(reading: QueueReading, item: Workload, now: float) -> KueueRow:
    found = explain_workload_in_queue(reading, item, now)
    at = reading.positions.get(item.metadata.name)
    queue = item.spec.queue_name
    rivals = {each.metadata.name for each in reading.workloads if each.spec.queue_name == queue}
    return KueueRow(
        namespace=item.metadata.namespace,
        workload=item.metadata.name,
        owner=_owner(item),
        queue=queue,
        since=parse_time_or_zero(item.metadata.creation_timestamp),
        position=0 if at is None else at.position_in_local_queue + 1,
        of=0 if at is None else len(rivals & reading.positions.keys()),
        among_all=0 if at is None else at.position_in_cluster_queue + 1,
        case=found.case,
        verdict=found.verdict,
    )


def _owner(item: Workload) -> str:
    """``Job/train``; ``pod-0 and 3 more`` of a group."""
    owners = item.metadata.owner_references
    if not owners:
        return ""
    first = owners[0].name if owners[0].kind == "Pod" else f"{owners[0].kind}/{owners[0].name}"
    return first if len(owners) == 1 else f"{first} and {len(owners) - 1} more"


def _notes(readings: Mapping[str, QueueReading]) -> Iterator[str]:
    for name, reading in readings.items():
        if reading.forbidden:
            yield f"you may not list {', '.join(reading.forbidden)} in namespace {name}: Kueue's queue is incomplete"
        if reading.silent:
            yield f"positions in Kueue are not known: {reading.silent}"
