"""Puts the parts of an agent together and runs them.

Start: mirror the node, its pods and its Instaslice object; read the cards; only then decide anything. From there all
parts work side by side on one book of slices and wake each other through one signal. Nothing here waits for the API
server while a container waits for its slice, except when a promise was not seen yet.
"""

import asyncio
import functools
import logging
import math
import random
from collections.abc import Sequence

from tessera.agent.http import serve_http
from tessera.agent.metrics import Metrics
from tessera.agent.ondemand.cards import CardWorker
from tessera.agent.ondemand.cdi import CdiFolder
from tessera.agent.ondemand.claims import Claims
from tessera.agent.ondemand.device_plugin import MigPlugin
from tessera.agent.ondemand.facts import PodGone, PodSeen, Started
from tessera.agent.ondemand.inventory import Inventory, enable_mig, read_inventory
from tessera.agent.ondemand.journal import JournalFile
from tessera.agent.ondemand.membership import NodeObjects, is_member
from tessera.agent.ondemand.record import Description, RecordWriter, facts_of
from tessera.agent.ondemand.slices import Book
from tessera.agent.options import AgentOptions
from tessera.agent.wakeup import Changes
from tessera.api.instaslice import INSTASLICES, Instaslice, NodeResources
from tessera.api.names import PodUid
from tessera.clock import Clock
from tessera.kube.backoff import Backoff
from tessera.kube.cache import Event, EventKind
from tessera.kube.client import Client
from tessera.kube.errors import ApiError
from tessera.kube.events import EventRecorder, reference_to
from tessera.kube.informer import Informer
from tessera.kube.resources import NODES, PODS, Node, Pod
from tessera.kubelet.seam import Device, Kubelet
from tessera.nvml.errors import NotSupported, NvmlError
from tessera.nvml.worker import AsyncNvml

_log = logging.getLogger(__name__)

#: Seconds after which cards that wait for a reset are looked at again; NVML has no event for it.
RESET_RECHECK = 60.0
#: Seconds of one wait for hardware events; the call is made again at once.
_EVENT_WAIT = 60.0


async def run(
    options: AgentOptions,
    client: Client,
    hardware: AsyncNvml,
    kubelet: Kubelet,
    clock: Clock,
    *,
    rng: random.Random | None = None,
) -> None:
    """Runs one node's agent until cancelled. It may be killed at any moment and started again.

    Args:
        options: which node, which folders.
        client: the API server; its identity needs what ``deploy/`` grants to the agent.
        hardware: the node's cards, already entered (``async with``); the caller closes it.
        kubelet: the node's kubelet.
        clock: the time.
        rng: for jitter; seeded in tests.

    Raises:
        NvmlError: the cards cannot be listed at all.
        ExceptionGroup: a part failed in a way that only a fresh start can mend.
    """
    agent = Agent(options, client, hardware, kubelet, clock, rng=rng or random.Random())
    await agent.run()


class Agent:
    """All parts of one node's agent."""

    def __init__(
        self,
        options: AgentOptions,
        client: Client,
        hardware: AsyncNvml,
        kubelet: Kubelet,
        clock: Clock,
        *,
        rng: random.Random,
    ) -> None:
        name, namespace = options.node_name, options.namespace
        self._options = options
        self._client = client
        self._hardware = hardware
        self._kubelet = kubelet
        self._clock = clock
        self._changes = Changes()
        self._journal = JournalFile(options.journal_file)
        self._book = Book(self._journal.load())
        self._cdi = CdiFolder(options.cdi_dir)
        self._metrics = Metrics()
        self._metrics.show(self._book)
        self._take_stock(Inventory())
        self._ready = False
        self._next_look = -math.inf
        self._workers: dict[str, tuple[CardWorker, asyncio.Task[None]]] = {}
        self._plugins: dict[str, asyncio.Task[None]] = {}
        self._told: set[tuple[str, str]] = set()
        self._backoff = Backoff(rng)
        by_name = f"metadata.name={name}"
        self._nodes = Informer(client, NODES, field_selector=by_name, clock=clock, rng=rng)
        self._pods = Informer(client, PODS, field_selector=f"spec.nodeName={name}", clock=clock, rng=rng)
        self._objects = Informer(client, INSTASLICES, namespace=namespace, field_selector=by_name, clock=clock, rng=rng)
        self._events = EventRecorder(client, component="tessera-agent", instance=name, clock=clock, rng=rng)
        self._own = NodeObjects(client, node_name=name, namespace=namespace)
        self._writer = RecordWriter(
            client,
            name=name,
            namespace=namespace,
            seen=self._object,
            resources=self._resources,
            book=self._book,
            sweep=self._sweep,
            changes=self._changes,
            rng=rng,
        )
        self._claims = Claims(
            kubelet=kubelet,
            book=self._book,
            pods=self,
            cdi=self._cdi,
            save=self._journal.save,
            hardware=hardware,
            changes=self._changes,
            clock=clock,
            metrics=self._metrics,
            timeout=options.claim_timeout,
        )

    async def run(self) -> None:
        """Runs until cancelled."""
        self._nodes.add_handler(self._node_seen)
        self._pods.add_handler(self._pod_seen)
        self._objects.add_handler(self._object_seen)
        async with asyncio.TaskGroup() as group:
            for informer in (self._nodes, self._pods, self._objects):
                group.create_task(informer.run())
            group.create_task(self._events.run())
            if self._options.http_port is not None:
                group.create_task(serve_http(self._options.http_port, self._metrics.registry, lambda: self._ready))
            await self._first_look()
            await self._start_workers(group, await read_inventory(self._hardware))
            self._book.apply(Started())
            self._cdi.keep_only(self._book.bound_devices())
            self._ready = True
            self._changes.notify()
            group.create_task(self._writer.run())
            group.create_task(self._watch_hardware())
            await self._stay_converged(group)

    async def _first_look(self) -> None:
        for informer in (self._nodes, self._pods, self._objects):
            await informer.wait_synced()

    async def _stay_converged(self, group: asyncio.TaskGroup) -> None:
        while True:
            seen = self._changes.count
            waits: float | None = None
            try:
                waits = await self._converge(group)
                self._backoff.reset()
            except (ApiError, ConnectionError, TimeoutError, NvmlError) as error:
                waits = self._backoff.next()
                _log.warning(
                    "node %s is not as it should be, again in %.1f s: %s", self._options.node_name, waits, error
                )
                await self._clock.sleep(waits)
                continue
            await self._changes.wait(seen, waits)

    async def _converge(self, group: asyncio.TaskGroup) -> float | None:
        """Brings the node's membership about; returns when to look again in any case."""
        node = self._node()
        if is_member(node):
            assert node is not None
            await self._offer(group, node)
            return RESET_RECHECK if any(each.waits for each in self._inventory.skipped) else None
        self._next_look = -math.inf
        if self._occupied():
            self._serve_plugins(group)
        else:
            await self._withdraw(node)
        return None

    async def _offer(self, group: asyncio.TaskGroup, node: Node) -> None:
        if any(each.waits for each in self._inventory.skipped) and self._clock.monotonic() >= self._next_look:
            self._next_look = self._clock.monotonic() + RESET_RECHECK
            await self._start_workers(group, await enable_mig(self._hardware))
        self._tell_skipped(node)
        if self._inventory.cards:
            await self._own.ensure_object(self._object())
            self._serve_plugins(group)
            await self._own.ensure_quota(node, self._quota)

    async def _withdraw(self, node: Node | None) -> None:
        for task in self._plugins.values():
            task.cancel()
        self._plugins.clear()
        await self._own.remove_object(self._object())
        if node is not None:
            await self._own.ensure_quota(node, None)

    def _occupied(self) -> bool:
        return bool(self._book.promises) or any(pod is not None for _, pod in self._book.instances())

    # Parts that come with the cards -----------------------------------------------------------------------------

    async def _start_workers(self, group: asyncio.TaskGroup, inventory: Inventory) -> None:
        if inventory == self._inventory:
            return
        self._take_stock(inventory)
        for card in inventory.cards:
            if card.uuid not in self._workers:
                worker = CardWorker(
                    card,
                    book=self._book,
                    save=self._journal.save,
                    hardware=self._hardware,
                    changes=self._changes,
                    clock=self._clock,
                    metrics=self._metrics,
                )
                await worker.read()
                self._workers[card.uuid] = (worker, group.create_task(worker.run(), name=f"card {card.uuid}"))
        self._changes.notify()

    def _take_stock(self, inventory: Inventory) -> None:
        """Notes the cards and works out, once, what follows from them alone."""
        self._inventory = inventory
        self._description = Description(inventory)
        self._quota = inventory.quota_gib()
        self._device_lists: dict[tuple[str, frozenset[str]], Sequence[Device]] = {}

    def _serve_plugins(self, group: asyncio.TaskGroup) -> None:
        for resource in self._inventory.resources():
            if resource not in self._plugins:
                devices = functools.partial(self._devices, resource)
                plugin = MigPlugin(resource, devices=devices, claims=self._claims, changes=self._changes)
                self._plugins[resource] = group.create_task(self._kubelet.serve(plugin), name=f"plugin {resource}")

    def _devices(self, resource: str) -> Sequence[Device]:
        joined = is_member(self._node())
        gone = frozenset(card.uuid for card in self._inventory.cards if not joined or self._book.lost(card.uuid))
        devices = self._device_lists.get((resource, gone))
        if devices is None:
            devices = self._device_lists[resource, gone] = self._inventory.devices(resource, unhealthy=gone)
        return devices

    async def _watch_hardware(self) -> None:
        while True:
            try:
                event = await self._hardware.wait_event(_EVENT_WAIT)
            except NotSupported as error:
                _log.warning("hardware events are not watched, a lost card shows at the next call only: %s", error)
                return
            except NvmlError as error:
                _log.warning("hardware events cannot be watched, again in %.0f s: %s", _EVENT_WAIT, error)
                await self._clock.sleep(_EVENT_WAIT)
                continue
            for uuid, (worker, _) in self._workers.items():
                if event is not None and event.gpu in {None, uuid}:
                    worker.suspect()

    # What the watches show --------------------------------------------------------------------------------------

    def _node(self) -> Node | None:
        return self._nodes.cache.get(self._options.node_name)

    def _object(self) -> Instaslice | None:
        return self._objects.cache.get(f"{self._options.namespace}/{self._options.node_name}")

    def _resources(self) -> NodeResources | None:
        node = self._node()
        if node is None or not self._ready:
            return None
        return self._description.now(self._book, node.status.node_info.boot_id)

    def _node_seen(self, _event: Event[Node]) -> None:
        self._changes.notify()

    def _object_seen(self, event: Event[Instaslice]) -> None:
        gone = event.kind is EventKind.DELETED
        if gone:
            self._own.object_gone()
        self._book.apply(facts_of(None if gone else event.object))
        self._changes.notify()

    def _pod_seen(self, event: Event[Pod]) -> None:
        pod = PodUid(event.object.metadata.uid)
        if event.kind is EventKind.DELETED:
            self._book.apply(PodGone(pod))
        else:
            over = is_over(event.object)
            if event.old is not None and is_over(event.old) == over:
                return
            self._book.apply(PodSeen(pod, over))
        self._changes.notify()

    def live(self) -> Sequence[Pod]:
        """The pods bound to this node that are not over."""
        return [pod for pod in self._pods.cache.values() if not is_over(pod)]

    async def bound(self) -> Sequence[Pod]:
        """The pods bound to this node that are not over, asked of the API server itself.

        Raises:
            ConnectionError: it did not say.
        """
        try:
            found = await self._client.list(PODS, field_selector=f"spec.nodeName={self._options.node_name}")
        except (ApiError, TimeoutError) as error:
            raise ConnectionError(str(error)) from error
        return [pod for pod in found.items if not is_over(pod)]

    async def has_promise(self, pod: PodUid) -> bool:
        """Whether the API server itself knows a promise to a pod.

        Raises:
            ConnectionError: it did not say.
        """
        try:
            return pod in await self._own.promises()
        except (ApiError, TimeoutError) as error:
            raise ConnectionError(str(error)) from error

    # What is told to people -------------------------------------------------------------------------------------

    def _sweep(self) -> None:
        """Undefines devices that nobody holds, saves the journal and tells what went wrong."""
        self._cdi.remove(self._book.take_unbound())
        self._journal.save(self._book.journal())
        for notice in self._book.take_notices():
            promise = self._book.promises.get(notice.pod)
            if promise is not None:
                about = reference_to(PODS, promise.name, promise.namespace, notice.pod)
                self._events.record(about, notice.reason, notice.text, type="Warning")

    def _tell_skipped(self, node: Node) -> None:
        about = reference_to(NODES, self._options.node_name, uid=node.metadata.uid)
        for each in self._inventory.skipped:
            if (each.info.uuid, each.reason) not in self._told:
                self._told.add((each.info.uuid, each.reason))
                text = f"card {each.info.uuid} ({each.info.name}) is not used for slices: {each.reason}"
                self._events.record(about, "CardSkipped", text, type="Warning" if each.waits else "Normal")


def is_over(pod: Pod) -> bool:
    """Whether all containers of a pod have ended for good."""
    return pod.status.phase in {"Succeeded", "Failed"}
