"""What waits in Kueue, for ``tessera queue``: each Workload with its position, and its reason in plain words.

A Job that Kueue holds has no pods yet, so the controller's queue does not know it. Only Workloads that Kueue has not
admitted are rows; the pods of the others are in the controller's queue.
"""

import heapq
import math
from collections.abc import Iterator, Mapping

import msgspec

from tessera.clock import parse_time_or_zero
from tessera.explain.queue import explain_workload_in_queue
from tessera.kube.client import Client
from tessera.kube.errors import ApiError, Forbidden
from tessera.kueue.objects import LOCAL_QUEUES, Workload
from tessera.kueue.positions import KUEUE_PLACES, QueueReading, QueueSize, read_queues
from tessera.kueue.waiting_workloads import WaitingWorkloads, read_waiting_workloads
from tessera.text import count_noun


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
        of_more: True if the queue may have more than ``of``.
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
    of_more: bool = False
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
    readings: Mapping[str, QueueReading]
    try:
        if namespace is None:
            found = await read_waiting_workloads(client, KUEUE_PLACES)
            readings, notes = found.namespaces, tuple(_notes_everywhere(found))
        else:
            reading = await read_queues(client, namespace)
            waiting = [each for each in reading.workloads if each.waits]
            readings = {namespace: msgspec.structs.replace(reading, workloads=waiting)}
            notes = tuple(_notes_in(namespace, reading))
    except Forbidden:
        return KueueRows(notes=("you may not list Kueue's workloads of all namespaces: name one with -n",))
    except (ApiError, OSError) as error:
        return KueueRows(notes=(f"Kueue's queues are not shown: {' '.join(str(error).split())}",))
    return KueueRows(rows=tuple(row for each in readings.values() for row in rows_of(each, now)), notes=notes)


def rows_of(reading: QueueReading, now: float, most: int | None = None) -> list[KueueRow]:
    """Returns the rows of one namespace, those of a queue in its order, Workloads without a position last.

    Args:
        reading: of the namespace; all of its Workloads wait.
        now: seconds since 1970.
        most: the number of rows; None for all. Those with the first places are taken, of all queues alike.
    """

    def place(item: Workload) -> tuple[float, str, str]:
        at = reading.positions.get(item.metadata.name)
        first = math.inf if at is None else at.position_in_local_queue
        return first, item.metadata.creation_timestamp or "", item.metadata.name

    shown = reading.workloads
    if most is not None and most < len(shown):
        placed = [each for each in shown if each.metadata.name in reading.positions]
        shown = heapq.nsmallest(most, placed if len(placed) >= most else shown, key=place)
    return [_row(reading, each, now) for each in sorted(shown, key=lambda each: (each.spec.queue_name, *place(each)))]


def _row(reading: QueueReading, item: Workload, now: float) -> KueueRow:
    found = explain_workload_in_queue(reading, item, now)
    at = reading.positions.get(item.metadata.name)
    size = reading.sizes.get(item.spec.queue_name, QueueSize(0)) if at is not None else QueueSize(0)
    return KueueRow(
        namespace=item.metadata.namespace,
        workload=item.metadata.name,
        owner=_owner(item),
        queue=item.spec.queue_name,
        since=parse_time_or_zero(item.metadata.creation_timestamp),
        position=0 if at is None else at.position_in_local_queue + 1,
        of=size.count,
        of_more=size.more,
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


def _notes_in(namespace: str, reading: QueueReading) -> Iterator[str]:
    if reading.forbidden:
        yield f"you may not list {', '.join(reading.forbidden)} in namespace {namespace}: Kueue's queue is incomplete"
    if reading.silent:
        where = "some of Kueue's queues" if reading.sizes else "Kueue"
        yield f"positions in {where} are not known: {reading.silent}"


def _notes_everywhere(found: WaitingWorkloads) -> Iterator[str]:
    if found.cut:
        yield "Kueue has more Workloads than are read at once: name a namespace with -n"
    if found.others:
        further, held = count_noun(len(found.others), "further namespace"), sum(found.others.values())
        yield f"Kueue's queues of {further}, with {count_noun(held, 'Workload')}, are not shown: name one with -n"
    if found.forbidden:
        yield f"you may not list {LOCAL_QUEUES.label} of all namespaces: positions in Kueue are not known"
    if found.silent:
        where = "some of Kueue's queues" if found.some_places else "Kueue"
        yield f"positions in {where} are not known: {found.silent}{f': {found.error}' if found.error else ''}"
