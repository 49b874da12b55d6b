"""Reads what waits in Kueue for the live page: each Workload with its place in its queue, and why it waits.

A Job that Kueue holds has no pods, and a pod that it holds is not in the controller's queue yet. The Workloads of all
namespaces are read at once, each :data:`PERIOD` seconds while somebody looks, and never for more than a twentieth of
the time. Who may see which of them is decided for each reader (:mod:`tessera.visibility`).

1. What is shown is bounded for each namespace and for all together, and so is the number of namespaces. Those in which
   present readers may list Workloads come first.
2. A document tells of each namespace how many further Workloads wait there. It also names the namespace, so that rights
   are asked for it, and its readers are among the present ones from then on.
3. There may be more namespaces than can be named at a time, or than one list reads. Those take turns.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import asdict

from tessera.clock import Clock
from tessera.dashboard.documents import Document, KueueDocument, UnshownDocument, WorkloadDocument
from tessera.dashboard.visitors import KUEUE_NAMED
from tessera.explain.kueue_rows import rows_of
from tessera.kube.client import Client
from tessera.kube.errors import ApiError, Forbidden
from tessera.kueue.objects import LOCAL_QUEUES, WORKLOADS
from tessera.kueue.positions import PAGE
from tessera.kueue.waiting_workloads import KEPT, Turns, WaitingWorkloads, read_waiting_workloads

#: Most Workloads of one namespace that wait in Kueue, on the live page; the number of others is shown. A reader gets a
#: document of some 300 bytes for each.
KUEUE_WORKLOADS = 200
#: Most Workloads of all namespaces that wait in Kueue, on the live page; large namespaces have equal parts. Most change
#: their place with each admission, and go to all readers then.
KUEUE_SHOWN = 1_000

#: Least seconds between two readings, and the part of the time that they may take.
PERIOD, SHARE = 15.0, 0.05


class KueueReader(NamedTuple):
    """With whose rights Kueue is read, and for whom.

    Attributes:
        account: whose rights the client has, as sentences on the page name it.
        own: the namespaces whose Workloads present readers may list who may not list all; if there are too many, the
            first ones are shown.
    """

    account: str = "you"
    own: Callable[[], Sequence[str]] = tuple


class KueueSource:
    """Reads Kueue's Workloads.

    Args:
        client: the API server.
        watched: true while somebody looks.
        changed: called when :attr:`documents` differ.
        clock: the time.
        reader: with whose rights, and for whom.

    Attributes:
        documents: by key; none while it is not known that Kueue is installed.
    """

    def __init__(
        self,
        client: Client,
        *,
        watched: Callable[[], bool],
        changed: Callable[[], None],
        clock: Clock,
        reader: KueueReader,
    ) -> None:
        self._client = client
        self._watched = watched
        self._changed = changed
        self._clock = clock
        self._reader = reader
        #: Who is named, and who is listed alone; the time of the last reading that succeeded.
        self._named, self._read, self._read_at = Turns(), Turns(), 0.0
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
        own, account = self._reader.own(), self._reader.account
        try:
            found = await read_waiting_workloads(self._client, PAGE, first=own, turns=self._read, account=account)
            documents = await self._make_documents(found, own) if found.installed else {}
            self._read_at = self._clock.now()
        except (ApiError, OSError) as error:
            note = "Kueue's queues cannot be read now"
            if isinstance(error, Forbidden):
                note = f"{account} may not list {WORKLOADS.label} of all namespaces"
            detail = " ".join(str(error).split())
            documents = {**self.documents, "kueue": KueueDocument(notes=(note,), detail=detail, read=self._read_at)}
        if documents != self.documents:
            self.documents = documents
            self._changed()

    async def _make_documents(self, found: WaitingWorkloads, own: Sequence[str]) -> dict[str, Document]:
        documents: dict[str, Document] = {}
        now = self._clock.now()
        parts = share_out({name: len(each.workloads) for name, each in found.namespaces.items()})
        for namespace, reading in found.namespaces.items():
            rows = rows_of(reading, now, parts[namespace])
            documents |= {f"workload/{namespace}/{row.workload}": WorkloadDocument(**asdict(row)) for row in rows}
            documents |= _unshown(namespace, len(reading.workloads) - len(rows))
            await asyncio.sleep(0)  # other readers of the page wait for one namespace at most
        room = KUEUE_NAMED - len(found.namespaces)
        named = self._named.choose(found.others, own, room, KUEUE_NAMED // KEPT)
        for namespace in named:
            documents |= _unshown(namespace, found.others[namespace])
        documents["kueue"] = KueueDocument(notes=self._notes(found, len(named)), detail=found.error)
        return documents

    def _notes(self, found: WaitingWorkloads, named: int) -> tuple[str, ...]:
        notes = []
        if found.cut:
            more = "Kueue has more Workloads than this page reads at once"
            notes.append(f"{more}; for those of one namespace, see: tessera queue -n NAMESPACE")
        if named < len(found.others):
            notes.append("Workloads wait in more namespaces than this page can name at a time: they take turns")
        silent = found.silent
        if found.forbidden:
            silent = f"{self._reader.account} may not list {LOCAL_QUEUES.label} of all namespaces"
        if silent:
            notes.append(f"places in {'some ' if found.some_places else ''}queues are not known: {silent}")
        return tuple(notes)


def share_out(sizes: Mapping[str, int]) -> dict[str, int]:
    """Returns how many Workloads of each namespace are shown.

    A namespace with few Workloads leaves its part to the others, and all others have the same.

    Args:
        sizes: the number of Workloads by namespace.
    """
    parts: dict[str, int] = {}
    left = int(KUEUE_SHOWN)
    for number, (name, size) in enumerate(sorted(sizes.items(), key=lambda each: each[1])):
        parts[name] = min(size, KUEUE_WORKLOADS, left // (len(sizes) - number))
        left -= parts[name]
    return parts


def _unshown(namespace: str, number: int) -> dict[str, Document]:
    return {f"unshown/{namespace}": UnshownDocument(namespace=namespace, workloads=number)} if number else {}
