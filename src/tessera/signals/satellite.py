"""Signals for scaling as a satellite of the controller: keeps them, and shows them as metrics and as a page.

Nothing is written to the API server. A round every :data:`PERIOD` seconds costs a bounded number of steps and requests,
and asks the agents of those nodes for their page that have pods with a page of their own; without services it costs
nothing.

How many pods there should be only the owner knows (``spec.replicas``): a service whose quota is full has fewer. Owners
are asked about, not watched: a watch of all ReplicaSets of a cluster costs more than this. Rules:

- At most :data:`ASKED` are asked about in one round, of each namespace a first one before any gets a second: those
  whose pods have come or gone since they were asked about, then those asked about the longest ago.
- A number that was not heard for :data:`AGE` seconds is not known, nor that of another kind.
- A round waits :data:`ANSWER` seconds for answers: the page's other numbers must not age while the server is silent.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from tessera.access.agent_pages import read_fleet
from tessera.access.page_reader import PageReader
from tessera.api.names import SCRAPE_ANNOTATION, PodUid
from tessera.api.nodes.node_marks import is_agent
from tessera.api.nodes.usage import NodeUsage
from tessera.clock import Clock
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.objects.resource_amounts import Amounts, pod_limits
from tessera.controller.satellite import Process, Task, Term
from tessera.controller.slicing.slicer import Slicer
from tessera.kube.client import Client
from tessera.kube.errors import ApiError, NotFound
from tessera.kube.informer import EventKind, Informer, WatchEvent
from tessera.kube.leader_election import KubeRuntime
from tessera.kube.resources import (
    CLONE_SETS,
    DEPLOYMENTS,
    REPLICASETS,
    RESOURCE_QUOTAS,
    STATEFULSETS,
    Deployment,
    Pod,
    ReplicaSet,
    Resource,
)
from tessera.signals.page import SIGNALS, SIGNALS_PATH, ReadyTimes, SignalsPage, image_of, sum_load, sum_power
from tessera.signals.services import ServiceKey, ServiceTable, first_of_each, quota_room

#: Seconds between two rounds: a HorizontalPodAutoscaler asks as often.
PERIOD = 15.0
#: Owners asked about in one round: 1,000 services take four minutes, and four small requests a second.
ASKED = 64
#: Seconds for which an owner's answer is believed, and that a round waits for answers.
AGE, ANSWER = 600.0, 5.0
#: Requests at a time.
_AT_ONCE = 8
#: What the controller may read (deploy/rbac.yaml).
_KINDS: Mapping[str, Resource[Any]] = {
    "CloneSet": CLONE_SETS,
    "Deployment": DEPLOYMENTS,
    "ReplicaSet": REPLICASETS,
    "StatefulSet": STATEFULSETS,
}
#: Kinds of owners whose pods end; they have no replicas to scale.
_ENDING = frozenset({"Job", "Node"})
_log = logging.getLogger(__name__)


class _Answer(NamedTuple):
    """What is known of a service: when it was asked about and its pods then; the number and when it was heard."""

    asked: float = 0.0
    pods: int = -1
    heard: float = 0.0
    stated: int | None = None


_NONE = _Answer()


class StatedPods:
    """Asks owners, and remembers what they state.

    Args:
        client: asks the API server.
        clock: of the answers' age.
    """

    def __init__(self, client: Client, clock: Clock) -> None:
        self._client, self._clock = client, clock
        self._answers: dict[ServiceKey, _Answer] = {}

    async def fill(self, page: SignalsPage) -> SignalsPage:
        """Returns the page with what the owners of its services state."""
        pods = {ServiceKey(each.namespace, each.kind, each.name): each.wanted for each in page.services}
        self._answers = {key: each for key, each in self._answers.items() if key in pods}
        turn = asyncio.Semaphore(_AT_ONCE)

        async def ask(key: ServiceKey) -> None:
            async with turn:
                found = await self._ask(key)
            self._answers[key] = found._replace(asked=self._clock.now(), pods=pods[key])

        with suppress(TimeoutError):
            async with asyncio.timeout(ANSWER):
                await asyncio.gather(*map(ask, self._next(pods)))
        oldest = self._clock.now() - AGE
        told = (self._answers.get(key, _NONE) for key in pods)
        known = (each.stated if each.heard >= oldest else None for each in told)
        pairs = zip(page.services, known, strict=True)
        services = tuple(msgspec.structs.replace(each, stated=number) for each, number in pairs)
        return msgspec.structs.replace(page, services=services)

    def _next(self, pods: Mapping[ServiceKey, int]) -> list[ServiceKey]:
        def asked(key: ServiceKey) -> float:
            known = self._answers.get(key, _NONE)
            return known.asked if known.pods == pods[key] else 0.0

        return first_of_each((key for key in pods if key.kind in _KINDS), ASKED, asked)

    async def _ask(self, key: ServiceKey) -> _Answer:
        """Returns what the owner states; what is known already if the server does not say it now."""
        try:
            found: Deployment | ReplicaSet = await self._client.get(_KINDS[key.kind], key.name, key.namespace)
        except NotFound:
            return _Answer(heard=self._clock.now())
        except (ApiError, OSError):
            return self._answers.get(key, _NONE)
        wanted = 1 if found.spec.replicas is None else max(0, found.spec.replicas)
        is_deleted = found.metadata.deletion_timestamp is not None
        return _Answer(heard=self._clock.now(), stated=0 if is_deleted else wanted)


class SignalsTask:
    """Keeps the signals of one term.

    Args:
        runtime: reads the agents' pages.
        slicer: the state machine.
        pods: all pods; run by the caller.

    Attributes:
        page: what is known.
        ready_times: how long pods take to be ready.
        quotas: the ResourceQuotas; run by the caller.
    """

    def __init__(self, runtime: KubeRuntime, slicer: Slicer, pods: Informer[Pod]) -> None:
        self._slicer = slicer
        self._pods = pods
        self._clock = runtime.clock
        self.quotas = Informer(
            runtime.client,
            RESOURCE_QUOTAS.as_dicts(),
            clock=runtime.clock,
            rng=runtime.rng,
            indexes={"namespace": lambda quota: (quota["metadata"].get("namespace", ""),)},
        )
        self._reader = PageReader(runtime.client, runtime.clock)
        self._stated = StatedPods(runtime.client, runtime.clock)
        self._warned = False
        self._table = ServiceTable(slicer)
        #: By pod that asks for cards, its service.
        self._owners: dict[PodUid, ServiceKey] = {}
        #: Those of them that are ready.
        self._ready: set[PodUid] = set()
        #: Those of them that are ready and have a page, as ``namespace/name``.
        self._serving: dict[PodUid, str] = {}
        self.page = SignalsPage(leads=True)
        self.ready_times = ReadyTimes()
        pods.add_handler(self.observe)

    def observe(self, event: WatchEvent[Pod]) -> None:
        """Takes in a change of a pod."""
        pod, uid = event.object, PodUid(event.object.metadata.uid)
        if event.kind is EventKind.DELETED:
            self._owners.pop(uid, None)
            self._serving.pop(uid, None)
            self._ready.discard(uid)
            self.ready_times.drop(pod)
            return
        self.ready_times.observe(pod)
        kind, _, name = pod.workload.partition("/")
        if name and kind not in _ENDING and image_of(pod):
            self._owners[uid] = ServiceKey(pod.metadata.namespace, kind, name)
            (self._ready.add if pod.status.is_ready else self._ready.discard)(uid)
            if pod.status.is_ready and pod.metadata.annotations.get(SCRAPE_ANNOTATION) == "true":
                self._serving[uid] = f"{pod.metadata.namespace}/{pod.metadata.name}"
            else:
                self._serving.pop(uid, None)

    async def run(self) -> None:
        """Keeps them until cancelled."""
        while True:
            loads = await self.read_loads()
            if self._slicer.is_caught_up:
                page = self._table.refresh(self._owners, self._clock.now(), loads, self._ready, self._admitted)
                self.page = await self._stated.fill(page)
            await self._clock.sleep(PERIOD)

    def _admitted(self, pod: PodInfo) -> int | None:
        found = self._pods.cache.get(pod.key)
        limits: Amounts = {}
        with suppress(ValueError):  # a number that Tessera cannot read bounds nothing, as in a quota
            limits = pod_limits(found) if found is not None else {}
        return quota_room(self.quotas.cache.by_index("namespace", pod.namespace), pod.amounts, limits)

    async def read_loads(self) -> Mapping[ServiceKey, Mapping[str, float]]:
        """By service with pods that have a page, its load as far as it is known."""
        serving = {uid: pod for uid, key in self._serving.items() if (pod := self._pods.cache.get(key)) is not None}
        pages = {page.node: page for page in await self._read_pages({each.spec.node_name for each in serving.values()})}
        usages = {(page.node, each.uid): each for page in pages.values() for each in page.services}
        powers: dict[tuple[str, str], list[float | None]] = {}
        for page in pages.values():
            for lease in page.leases:
                powers.setdefault((page.node, lease.uid), []).append(lease.power)
        found: dict[ServiceKey, list[tuple[str, str]]] = {}
        for uid, pod in serving.items():
            found.setdefault(self._owners[uid], []).append((pod.spec.node_name, uid))
        return {
            key: sum_load([usages.get(each) for each in places], [sum_power(powers.get(each, ())) for each in places])
            for key, places in found.items()
        }

    async def _read_pages(self, nodes: Collection[str]) -> Sequence[NodeUsage]:
        """The pages of these nodes' agents; an agent is believed about pods of its own node alone."""
        if not nodes:
            return ()
        agents = [pod for pod in self._pods.cache.values() if is_agent(pod) and pod.spec.node_name in nodes]
        try:
            fleet = await read_fleet(self._reader, agents)
        except (ApiError, OSError) as error:
            if not self._warned:
                _log.warning("the load of services is not known: agents' pages cannot be read: %s", error)
            self._warned = True
            return ()
        self._warned = False
        return fleet.nodes


class SignalsCollector(Collector):
    """Shows the signals of the leading replica; another replica shows none.

    Args:
        task: returns the present term's; None while another replica leads.
    """

    def __init__(self, task: Callable[[], SignalsTask | None]) -> None:
        self._task = task

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yields the families."""
        task = self._task()
        page = SignalsPage() if task is None else task.page
        for name, text in SIGNALS.items():
            family = GaugeMetricFamily(name, text, labels=["namespace", "kind", "name"])
            for each in page.services:
                if name in each.values:
                    family.add_metric([each.namespace, each.kind, each.name], each.values[name])
            yield family
        yield GaugeMetricFamily("tessera_services_cut", "Services without signals, beyond the limit.", page.cut)
        ready = GaugeMetricFamily(
            "tessera_image_ready_seconds",
            "Time from a pod's node to Ready, of the last 50 starts of its image.",
            labels=["image", "quantile"],
        )
        for image, (half, most) in ({} if task is None else task.ready_times.quantiles()).items():
            ready.add_metric([image, "0.5"], half)
            ready.add_metric([image, "0.9"], most)
        yield ready


@dataclass(frozen=True, kw_only=True)
class SignalsSatellite:
    """Shows by what services can be scaled."""

    def open(self, process: Process) -> Callable[[Term], None]:
        """See :class:`~tessera.controller.satellite.Satellite`."""
        #: The task of the present term; none while another replica leads.
        present: list[SignalsTask] = []

        def page() -> bytes:
            found = present[-1].page if present else SignalsPage()
            age = max(0.0, process.clock.now() - found.taken) if found.taken else 0.0
            return msgspec.json.encode(msgspec.structs.replace(found, age=age))

        def join(term: Term) -> None:
            task = SignalsTask(term.runtime, term.slicer, term.pods)
            present.append(task)
            term.at_end.callback(present.clear)
            term.tasks.append(Task(name="signals for scaling", run=task.run))
            term.tasks.append(Task(name="quotas of services", run=task.quotas.run))

        process.pages[SIGNALS_PATH] = page
        process.registry.register(SignalsCollector(lambda: present[-1] if present else None))
        return join
