"""Reads what waits in Kueue for the live page: each Workload with its place in its queue, and why it waits.

A Job that Kueue holds has no pods, and a pod that it holds is not in the controller's queue yet. The Workloads of all
namespaces are read at once, each :data:`PERIOD` seconds while somebody looks, and never for more than a twentieth of
the time. Who may see which of them is decided for each reader (:mod:`tessera.dashboard.visibility`).
"""

from collections.abc import Callable, Iterator
from itertools import groupby

from tessera.clock import Clock
from tessera.dashboard.documents import Document, KueueDocument, WorkloadDocument
from tessera.explain.kueue_rows import KueueRow, KueueRows, rows_of
from tessera.kube.client.client import Client
from tessera.kube.client.errors import ApiError
from tessera.kueue.queue_reading import read_waiting_workloads
from tessera.limits.forecast import KUEUE_NAMESPACES, KUEUE_WORKLOADS

#: Least seconds between two readings, and the part of the time that they may take.
PERIOD, SHARE = 15.0, 0.05


class KueueSource:
    """Reads Kueue's Workloads.

    Args:
        client: the user's client.
        watched: true while somebody looks.
        changed: called when :attr:`documents` differ.
        clock: the time.

    Attributes:
        documents: by key; none while it is not known that Kueue is installed.
    """

    def __init__(
        self, client: Client, *, watched: Callable[[], bool], changed: Callable[[], None], clock: Clock
    ) -> None:
        self._client = client
        self._watched = watched
        self._changed = changed
        self._clock = clock
        self.documents: dict[str, Document] = {}

    async def run(self) -> None:
        """Reads until cancelled; the first time also without a reader."""
        first = True
        while True:
            began = self._clock.monotonic()
            if first or self._watched():
                first = False
                await self.read()
            await self._clock.sleep(max(PERIOD, (self._clock.monotonic() - began) / SHARE))

    async def read(self) -> None:
        """Reads once. What cannot be read now is shown as it was read last, with the reason."""
        try:
            found = await read_waiting_workloads(self._client, KUEUE_NAMESPACES)
            documents = make_documents(rows_of(found, self._clock.now())) if found.installed else {}
        except (ApiError, OSError) as error:
            note = f"Kueue's queues cannot be read: {' '.join(str(error).split())}"
            documents = {**self.documents, "kueue": KueueDocument(note=note)}
        if documents != self.documents:
            self.documents = documents
            self._changed()


def make_documents(found: KueueRows) -> dict[str, Document]:
    """Returns the documents of these rows, at most :data:`KUEUE_WORKLOADS` of a namespace."""
    documents: dict[str, Document] = {}
    notes = list(found.notes)
    for namespace, rows in groupby(found.rows, key=lambda row: row.namespace):
        shown, left_out = _first(rows)
        documents |= {f"workload/{namespace}/{row.workload}": _document(row) for row in shown}
        if left_out:
            notes.append(f"{left_out} further Workloads of namespace {namespace} are not shown")
    documents["kueue"] = KueueDocument(note="; ".join(notes))
    return documents


def _first(rows: Iterator[KueueRow]) -> tuple[list[KueueRow], int]:
    """The rows that are shown, and the number of others."""
    every = list(rows)
    return every[:KUEUE_WORKLOADS], max(0, len(every) - KUEUE_WORKLOADS)


def _document(row: KueueRow) -> WorkloadDocument:
    return WorkloadDocument(
        namespace=row.namespace,
        workload=row.workload,
        owner=row.owner,
        queue=row.queue,
        since=row.since,
        position=row.position,
        of=row.of,
        among_all=row.among_all,
        case=row.case,
        verdict=row.verdict,
    )
