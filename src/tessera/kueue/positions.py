"""Reads the places of Workloads in Kueue's queues from its visibility API, of the version that the server prefers.

1. The API gives 1,000 places of a queue at once. Further ones are asked for up to a bound; beyond it, the number of
   Workloads in the queue is known only to be larger.
2. The number of answers is bounded. Namespaces have one answer each in turn, so none with many or long queues takes
   those of others.
3. An API that does not answer is not asked about the next queue, and neither is one that has answered often enough.
   One that refuses the places of a queue is: the refusal may be about that queue alone.

What Kueue knows about the Workloads of a namespace is read with the rights of the caller. Only GET and LIST are used.
What the user may not read is left out and named.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from tessera.kube.client import Client
from tessera.kube.errors import ApiError, Forbidden, NotFound
from tessera.kube.resources import ObjectMeta, Resource, Wire
from tessera.kueue.objects import (
    LOCAL_QUEUES,
    RESOURCE_FLAVORS,
    VISIBILITY_GROUP,
    WORKLOADS,
    Workload,
    served_resource,
    served_version,
)
from tessera.limits import Limit

KUEUE_ANSWERS = Limit(
    200,
    "answers",
    "answers of Kueue's visibility API in one reading; places that they do not have are not shown",
    "50 namespaces with four queues each",
)

#: Places in one answer: Kueue's own default.
PAGE = 1_000


#: Refusals that the next queue would get too: 401 Unauthorized, 429 Too Many Requests.
_OF_ALL_QUEUES = {401, 429}


class PendingWorkload(Wire, frozen=True, kw_only=True):
    """A Workload in a queue; positions begin with 0."""

    metadata: ObjectMeta = ObjectMeta()
    position_in_cluster_queue: int = 0
    position_in_local_queue: int = 0


class _Summary(Wire, frozen=True, kw_only=True):
    items: tuple[PendingWorkload, ...] = ()


class QueueSize(msgspec.Struct, frozen=True):
    """The number of pending Workloads of a queue.

    Attributes:
        count: as many at least.
        more: True if there may be more than that.
    """

    count: int
    more: bool = False


class Positions(NamedTuple):
    """Places in the queues of one namespace.

    Attributes:
        places: pending Workloads by name.
        sizes: by queue; those that were read.
        silent: why there are not all; empty if there are.
    """

    places: dict[str, PendingWorkload]
    sizes: dict[str, QueueSize]
    silent: str


class _Reading:
    """The places in the queues of a namespace, as far as they were read.

    Attributes:
        namespace: the namespace.
        queues: LocalQueues that have more places; the first is being read.
        count: places of that one that were read.
        silent: see :attr:`Positions.silent`.
    """

    def __init__(self, namespace: str, queues: Sequence[str]) -> None:
        self.namespace = namespace
        self.queues = deque(queues)
        self.count = 0
        self.silent = ""
        self._places: dict[str, PendingWorkload] = {}
        self._sizes: dict[str, QueueSize] = {}

    @property
    def positions(self) -> Positions:
        return Positions(self._places, self._sizes, self.silent)

    def put(self, queue: str, items: Sequence[PendingWorkload], *, more: bool) -> None:
        """Takes in further places of a queue; ``more`` tells that there may be others behind them."""
        self.count += len(items)
        self._places.update((each.metadata.name, each) for each in items)
        if self.count:
            self._sizes[queue] = QueueSize(self.count, more)

    def end_queue(self) -> None:
        """Goes on with the next queue."""
        self.queues.popleft()
        self.count = 0

    def end(self, silent: str) -> None:
        """Reads no further; ``silent`` tells why."""
        self.queues.clear()
        self.silent = silent


class PositionReader:
    """Reads places, for one reading of the queues.

    Args:
        client: the user's client.
        most: places that are read of a queue.
        account: whose rights the client has: ``you``.

    Attributes:
        silent: why places are not known, in words of Tessera alone; empty if they are.
        error: what the server said; empty if it answered.
    """

    def __init__(self, client: Client, most: int, account: str = "you") -> None:
        self._client = client
        self._most = most
        self._account = account
        self._version = ""
        #: Answers that may still be asked for; none after a failure that is none of the namespace.
        self._left = int(KUEUE_ANSWERS)
        self.silent = self.error = ""

    async def read(self, queues: Mapping[str, Sequence[str]]) -> Mapping[str, Positions]:
        """Reads the places in queues.

        Args:
            queues: names of LocalQueues by namespace.
        """
        readings = {namespace: _Reading(namespace, names) for namespace, names in queues.items()}
        left = deque(readings.values())
        while left:
            reading = left.popleft()
            if reading.queues:
                await self._read_page(reading)
                left.append(reading)
        return {namespace: each.positions for namespace, each in readings.items()}

    async def _read_page(self, of: "_Reading") -> None:
        """Asks for the next places of a namespace."""
        queue = of.queues[0]
        try:
            items = await self._ask(f"namespaces/{of.namespace}/localqueues/{queue}/pendingworkloads", of.count)
        except NotFound:
            of.end_queue()  # the queue has just gone, or Kueue does not know it yet
        except Forbidden:
            self.silent = f"{self._account} may not get localqueues/pendingworkloads.{VISIBILITY_GROUP}"
            of.end(self.silent)
        except _SilentError:
            of.end(f"{self.silent}: {self.error}" if self.error else self.silent)
        except _RefusedError as error:
            refused = "Kueue's visibility API refuses places of a queue"
            self.silent, self.error = self.silent or refused, self.error or str(error)
            of.silent = f"{refused}: {error}"
            of.end_queue()
        else:
            more = len(items) >= PAGE
            of.put(queue, items, more=more)
            if not more or of.count >= self._most:
                of.end_queue()

    async def _ask(self, path: str, offset: int) -> tuple[PendingWorkload, ...]:
        if not self._left:
            self.silent = self.silent or f"Kueue gave {int(KUEUE_ANSWERS)} answers, and no more are asked for"
            raise _SilentError
        self._left -= 1
        try:
            version = await self._served_version()
            query = [("limit", str(PAGE)), ("offset", str(offset))]
            answer = await self._client.request("GET", f"/apis/{VISIBILITY_GROUP}/{version}/{path}", query=query)
            return msgspec.json.decode(answer.body, type=_Summary).items
        except (Forbidden, NotFound):
            raise
        except (ApiError, OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            text = " ".join(str(error).split())
            if isinstance(error, ApiError) and 400 <= error.code < 500 and error.code not in _OF_ALL_QUEUES:
                raise _RefusedError(text) from error
            self._left = 0
            self.silent, self.error = "Kueue's visibility API does not answer", text
            raise _SilentError from error

    async def _served_version(self) -> str:
        if not self._version:
            try:
                self._version = await served_version(self._client, VISIBILITY_GROUP)
            except NotFound as error:
                self._left, self.silent = 0, "Kueue's visibility API is not served"
                raise _SilentError from error
        return self._version


class _RefusedError(Exception):
    """The API refuses the places of one queue; the text is what it said."""


class _SilentError(Exception):
    """The API has no answer; :attr:`PositionReader.silent` says why."""


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
