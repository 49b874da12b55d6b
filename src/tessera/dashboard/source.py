"""Reads the cluster for the live page, with the rights of one user.

Pods, nodes and Instaslice objects are watched. The agents' pages are read each :data:`PERIOD` seconds while somebody
looks, and else once for each value of the history; Kueue's Workloads as :mod:`tessera.dashboard.kueue_source` says. A
user who may not read a kind sees the page without it.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from operator import is_not
from typing import Any, Generic, TypeVar

import msgspec

from tessera.access.agent_pages import FleetUsage, read_fleet
from tessera.access.page_reader import PageReader
from tessera.api.instaslice import INSTASLICES, KIND_MISSING, Instaslice
from tessera.api.names import INSTASLICE_NAMESPACE, SYSTEM_NAMESPACE
from tessera.api.nodes.silence import SilentNode, silent_nodes
from tessera.clock import Clock
from tessera.dashboard.answers import NOT_MIRRORED, explain_waiting, node_documents, waiting_pods
from tessera.dashboard.card_documents import make_documents
from tessera.dashboard.documents import Document, TeamDocument
from tessera.dashboard.feed import FeedGroup
from tessera.dashboard.history import STEP, History
from tessera.dashboard.kueue_source import KueueReader, KueueSource
from tessera.explain.explanation import Explanation
from tessera.explain.order_objects import read_order_objects
from tessera.explain.snapshot import OrderObjects, Snapshot
from tessera.forecast.queue_page import QueuePage
from tessera.kube.client import Client
from tessera.kube.errors import ApiError, Forbidden, NotFound
from tessera.kube.informer import Informer
from tessera.kube.resources import (
    CONFIGMAPS,
    EVENTS,
    NODES,
    PODS,
    RESOURCE_QUOTAS,
    CoreEvent,
    Pod,
    ResourceQuota,
)
from tessera.kube.resources.meta import Resource
from tessera.observe.queue_reading import page_or_reason, read_queue, read_signals
from tessera.observe.service_rows import ServiceRow, service_rows
from tessera.signals.page import SignalsPage
from tessera.usage.record import RECORD_KEY, RECORD_NAME, decode_teams

T = TypeVar("T")

_log = logging.getLogger(__name__)

#: Seconds between two readings of the agents' pages; an agent takes a sample every 10 s and with each change.
PERIOD = 5.0
#: Seconds until a kind that was refused is tried again.
RETRY = 15.0
#: Seconds that the API server may take to answer the smallest question.
PATIENCE = 10.0
#: Stands for every node where none can be read.
_ALL = "all nodes"
#: Most events of a pod, and most quotas of its namespace, that one explanation rests on; the API server keeps events
#: for an hour.
_OF_NAMESPACE = 500
#: Least seconds between two publications: a burst of changes is one.
SHORTEST = 0.25
#: The usage of cards before the agents were asked.
_UNASKED = FleetUsage()


class Recent(Generic[T]):
    """A value that is read again once it is too old; those who wait for a reading share it.

    Args:
        read: reads it.
        clock: the time.

    Attributes:
        value: as it was read last; None before that.
        read_at: when the reading of the value began, on the clock that never runs backwards.
    """

    def __init__(self, read: Callable[[], Awaitable[T]], clock: Clock) -> None:
        self.value: T | None = None
        self.read_at = float("-inf")
        self._read, self._clock, self._reading = read, clock, asyncio.Lock()
        #: How many readings have ended.
        self._readings = 0

    async def get(self, oldest: float) -> T:
        """The value, at most ``oldest`` seconds old, or of a reading that ended after it was asked for."""
        readings = self._readings
        async with self._reading:
            began = self._clock.monotonic()
            if self.value is None or (self._readings == readings and began - self.read_at >= oldest):
                self.value, self.read_at = await self._read(), began
                self._readings += 1
            return self.value


class ClusterSource:
    """Reads a cluster and publishes its documents.

    Args:
        client: the user's client.
        feeds: get the documents.
        watched: true while somebody looks.
        clock: the time.
        rng: for the pauses of watches.
        account: whose rights the client has, as sentences on the page name it.
    """

    def __init__(
        self,
        client: Client,
        feeds: FeedGroup,
        *,
        watched: Callable[[], bool],
        clock: Clock,
        rng: random.Random,
        account: str = "you",
    ) -> None:
        self._client, self._reader = client, PageReader(client, clock)
        self._account = account
        self._feeds = feeds
        self._watched = watched
        self._clock = clock
        self._changed = asyncio.Event()
        self._agents = Recent(self._read_fleet, clock)
        #: The controller's queue and its signals of services, or why they cannot be read.
        self._queue = Recent(lambda: page_or_reason(read_queue(client, self._reader)), clock)
        self._signals = Recent(lambda: page_or_reason(read_signals(client, self._reader)), clock)
        #: The services by their keys in the feed, and what they were made of.
        self._services: Mapping[str, ServiceRow] = {}
        self._services_of: tuple[object, object, object] = (None, None, None)
        #: Teams by namespace, where they are not the namespace itself.
        self._teams = Recent(self._read_teams, clock)
        #: The last refusal of each kind that the user may not read.
        self._refused: dict[str, str] = {}
        self._pods = Informer(client, PODS, clock=clock, rng=rng)
        self._instaslices = Informer(client, INSTASLICES, namespace=INSTASLICE_NAMESPACE, clock=clock, rng=rng)
        self._nodes = Informer(client, NODES, clock=clock, rng=rng)
        #: What decides on the order of pods.
        self._order = Recent(self._read_order, clock)
        reader = KueueReader(account, lambda: feeds.workload_namespaces)
        self._kueue = KueueSource(client, watched=watched, changed=self._changed.set, clock=clock, reader=reader)
        self._history = History()
        #: True if an agent reported simulated cards; forgotten once all agents answer and none has any.
        self._simulated = False
        #: By ``namespace/name`` of pods that wait, why they do.
        self._reasons: dict[str, Explanation] = {}
        #: Why the API server gives no answer; empty while it does.
        self._silence = ""
        self._pods.add_handler(lambda _: self._changed.set())
        self._instaslices.add_handler(lambda _: self._changed.set())
        self._nodes.add_handler(lambda _: self._changed.set())
        self._instaslices.on_missing(self._note_kind)

    async def run(self) -> None:
        """Reads and publishes until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._mirror(PODS, self._pods))
            group.create_task(self._mirror(INSTASLICES, self._instaslices))
            group.create_task(self._mirror(NODES, self._nodes))
            group.create_task(self._kueue.run())
            group.create_task(self._read_agents())
            group.create_task(self._watch_server())
            group.create_task(self._explain_waiting())
            await self._changed.wait()
            while True:
                self._changed.clear()
                self._publish()
                await self._clock.sleep(SHORTEST)
                await self._changed.wait()

    async def _mirror(self, resource: Resource[Any], informer: Informer[Any]) -> None:
        """Mirrors a kind once the user may read it; until then its refusal is shown."""
        name = resource.plural
        where = INSTASLICE_NAMESPACE if resource is INSTASLICES else None
        while True:
            try:
                await self._client.page(resource, where, limit=1)
                break
            except (ApiError, OSError) as error:
                lacks = resource is INSTASLICES and isinstance(error, NotFound)
                self._refused[name] = KIND_MISSING if lacks else " ".join(str(error).split())
                self._changed.set()
                await self._clock.sleep(RETRY)
        self._refused.pop(name, None)
        self._changed.set()
        await informer.run()

    def _note_kind(self, missing: bool) -> None:
        """Notes that nothing is known of the records while the cluster lacks their kind, or that they are back."""
        if missing:
            self._refused[INSTASLICES.plural] = KIND_MISSING
        else:
            self._refused.pop(INSTASLICES.plural, None)
        self._changed.set()

    @property
    def missing(self) -> str:
        """The kind that is not read yet, with the refusal; empty once everything is there."""
        read = {"pods": self._pods.synced, "instaslices": self._instaslices.synced, "nodes": self._nodes.synced}
        names = [name for name, synced in read.items() if not synced]
        return f"{names[0]} are not read yet: {self._refused.get(names[0], 'no answer so far')}" if names else ""

    @property
    def objects(self) -> Snapshot:
        """What is mirrored now."""
        return Snapshot(
            now=self._clock.now(),
            pods=list(self._pods.cache.values()),
            nodes=list(self._nodes.cache.values()),
            instaslices=list(self._instaslices.cache.values()),
            forbidden=NOT_MIRRORED | self._refused.keys(),
            failed={kind: why for kind, why in self._refused.items() if why == KIND_MISSING},
            order=self._order.value or OrderObjects(),
        )

    async def read_fleet(self) -> FleetUsage:
        """The agents' pages, read again if they are older than :data:`PERIOD`."""
        return await self._agents.get(PERIOD)

    async def read_queue(self, oldest: float = PERIOD) -> QueuePage | str:
        """The controller's queue, read again if it is older than ``oldest`` seconds; or why nobody tells it."""
        return await self._queue.get(oldest)

    @property
    def queue_read_at(self) -> float:
        """When the controller's queue was read last, on the clock that never runs backwards."""
        return self._queue.read_at

    async def read_signals(self) -> SignalsPage | str:
        """The controller's signals of services, read again if older than :data:`PERIOD`; or why nobody tells them."""
        return await self._signals.get(PERIOD)

    async def read_usage_record(self) -> str:
        """The controller's record of GPU-hours.

        Raises:
            ApiError: there is none yet, or it cannot be read.
        """
        found = await self._client.get(CONFIGMAPS, RECORD_NAME, SYSTEM_NAMESPACE)
        return found.data.get(RECORD_KEY, "")

    async def read_namespace(
        self, pod: Pod, kinds: Collection[str]
    ) -> tuple[Sequence[CoreEvent] | None, Sequence[ResourceQuota] | None]:
        """The events of a pod, and the quotas of its namespace; None for what is not in ``kinds``."""
        namespace, about = pod.metadata.namespace, f"involvedObject.uid={pod.metadata.uid}"
        events, quotas = await asyncio.gather(
            self._list(EVENTS, namespace, kinds, about), self._list(RESOURCE_QUOTAS, namespace, kinds)
        )
        return events, quotas

    async def _list(
        self, resource: Resource[T], namespace: str, kinds: Collection[str], about: str | None = None
    ) -> Sequence[T] | None:
        if resource.plural not in kinds:
            return None
        try:
            return (await self._client.page(resource, namespace, limit=_OF_NAMESPACE, field_selector=about)).items
        except (ApiError, OSError):
            return None

    @property
    def _fleet(self) -> FleetUsage:
        return self._agents.value or _UNASKED

    def _page(self) -> QueuePage | None:
        return self._queue.value if isinstance(self._queue.value, QueuePage) else None

    async def read_order(self) -> None:
        """Reads what decides on the order of pods, if that was :data:`RETRY` seconds ago; it is needed to plan anew."""
        await self._order.get(RETRY)

    async def _read_order(self) -> OrderObjects:
        try:
            return await read_order_objects(self._client, self._pods.cache.values())
        except (ApiError, OSError):
            return self._order.value or OrderObjects()  # the former ones count

    def pod(self, namespace: str, name: str) -> Pod | None:
        """A pod of the cluster."""
        return self._pods.cache.get(f"{namespace}/{name}")

    def owned_pods(self, namespace: str, uid: str) -> list[Pod]:
        """The pods of a namespace that a controller made."""
        every: list[Pod] = list(self._pods.cache.values())
        return [
            pod
            for pod in every
            if pod.metadata.namespace == namespace
            and any(each.controller and each.uid == uid for each in pod.metadata.owner_references)
        ]

    def _publish(self) -> None:
        pods: list[Pod] = list(self._pods.cache.values())
        instaslices: list[Instaslice] = list(self._instaslices.cache.values())
        refused = (SilentNode(node=name, reason=reason) for name, reason in self._refused.items())
        now = self._clock.now()
        nodes = list(self._nodes.cache.values())
        about_nodes = list(node_documents(nodes, now))
        # Of a node that starts up, the document of its start says what it waits for.
        starting = {each.node for each in about_nodes if each.startup is not None and not each.startup.overdue}
        silent = (each for each in self._fleet.failures if each.node not in starting)
        unanswered = [SilentNode(node=_ALL, reason=self._silence)] if self._silence else ()
        failures = {each.node: each for each in (*silent, *refused, *unanswered)}
        fleet = msgspec.structs.replace(self._fleet, failures=tuple(failures.values()))
        found = make_documents(
            fleet, pods, instaslices, self._reasons, nodes, queue=self._queue.value, simulated=self._simulated
        )
        documents: dict[str, Document] = {**found, **self._kueue.documents}
        documents |= {f"node/{each.node}": each for each in about_nodes}
        documents |= self.services
        signals, page, teams = self._signals.value, self._page(), self._teams.value or {}
        if isinstance(signals, str):
            documents["summary"] = msgspec.structs.replace(found["summary"], unserved=True, unserved_detail=signals)
        elif signals is not None and signals.cut:
            documents["summary"] = msgspec.structs.replace(found["summary"], services_cut=signals.cut)
        if page is not None:
            documents |= {f"spare/{each.queue}/{each.profile}": each for each in page.spare}
        documents |= {f"team/{name}": TeamDocument(namespace=name, team=team) for name, team in teams.items()}
        self._history.record(now, documents)
        self._feeds.publish({**documents, **self._history.documents})

    @property
    def services(self) -> Mapping[str, ServiceRow]:
        """The services by their keys in the feed, made anew when a page was read anew: all leases are looked at."""
        parts = (self._signals.value, self._fleet, self._queue.value)
        if any(map(is_not, parts, self._services_of)):
            self._services_of = parts
            self._services = {f"service/{each.key}": each for each in service_rows(*parts)}
        return self._services

    async def _explain_waiting(self) -> None:
        """Explains waiting pods that the controller does not list; none to a user who may not read all kinds."""
        for each in (self._pods, self._instaslices, self._nodes):
            await each.wait_synced()
        due = 0.0
        while True:
            # Without a reader seldom, so that the first one need not wait for the reasons.
            if self._watched() or self._clock.monotonic() >= due:
                due = self._clock.monotonic() + STEP
                found = await self._explain_unlisted()
                if found != self._reasons:
                    self._reasons = found
                    self._changed.set()
            await self._clock.sleep(PERIOD)

    async def _explain_unlisted(self) -> dict[str, Explanation]:
        page = self._page()
        waiting = waiting_pods(self._pods.cache.values(), page)
        if not waiting:
            return {}
        await self.read_order()
        return await asyncio.to_thread(explain_waiting, waiting, self.objects, page)

    async def _read_agents(self) -> None:
        await self._pods.wait_synced()
        due = 0.0
        while True:
            # Without a reader, once for each value of the history.
            if self._watched() or self._clock.monotonic() >= due:
                due = self._clock.monotonic() + STEP
                await self._agents.get(0.0)
                await self.read_queue()
                await self.read_signals()
                await self._teams.get(STEP)
                self._changed.set()
            await self._clock.sleep(PERIOD)

    async def _watch_server(self) -> None:
        """Notes, while somebody looks, that the API server is silent: its watches would show that minutes later."""
        while True:
            silence = await self._ask_server() if self._watched() else ""
            if silence != self._silence:
                self._silence = silence
                self._changed.set()
            await self._clock.sleep(PERIOD)

    async def _ask_server(self) -> str:
        try:
            async with asyncio.timeout(PATIENCE):
                await self._client.request("GET", "/version")
        except TimeoutError:
            return f"the API server has not answered for {PATIENCE:.0f} s: what is shown may be old"
        except OSError as error:
            return f"the API server does not answer: {error}"
        except ApiError:  # an answer
            return ""
        return ""

    async def _read_teams(self) -> Mapping[str, str]:
        """The teams that the controller writes with its record; those of the last time if they cannot be read."""
        try:
            return decode_teams(await self.read_usage_record())
        except (ApiError, OSError):
            return self._teams.value or {}

    def _silent(self) -> dict[str, SilentNode]:
        """The nodes that should answer and do not; none before the nodes are read, which the page says itself."""
        if not self._nodes.synced:
            return {}
        objects = {each.metadata.name for each in self._instaslices.cache.values()}
        return silent_nodes(self._nodes.cache.values(), self._pods.cache.values(), objects)

    async def _read_fleet(self) -> FleetUsage:
        found = await self._ask_agents()
        if any(each.simulated for each in found.nodes):
            self._simulated = True
        elif not found.failures:
            self._simulated = False
        self._changed.set()
        return found

    async def _ask_agents(self) -> FleetUsage:
        try:
            return await read_fleet(self._reader, list(self._pods.cache.values()), self._silent())
        except (ApiError, OSError) as error:
            _log.warning("the agents' pages cannot be read: %s", error)
            text = f"the API server does not answer: {error}"
            if isinstance(error, Forbidden):
                role = "bind the ClusterRole tessera-usage-reader in tessera-system"
                text = f"{self._account} may not read the agents' pages: {role}"
            return msgspec.structs.replace(self._fleet, failures=(SilentNode(node=_ALL, reason=text),))
