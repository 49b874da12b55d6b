"""The slicer of one node: everything that serves slices on demand on the cards that are given to it.

It has the cards whose role says so (:mod:`tessera.agent.inventory.card_ownership`): MIG mode is turned on there, the
Instaslice object tells them to the controller, kubelet is offered every position, and the node's capacity gets the
memory quota. A card that it is to let go of is offered to nobody any more; what runs keeps its slices, and when the
last one is gone and the controller has been told, the card is let go. With the last card object, devices and quota go
too.
"""

import asyncio
import functools
import logging
import math
import random
from collections.abc import Awaitable, Callable, Sequence

from tessera.agent.base.api_mirror import ApiMirror, has_ended
from tessera.agent.base.change_notifier import ChangeNotifier
from tessera.agent.base.metrics import Metrics
from tessera.agent.base.options import AgentOptions
from tessera.agent.inventory.card_ownership import CardOwner, CardOwnership
from tessera.agent.inventory.mig_cards import SliceableGpus, enable_mig, read_inventory
from tessera.agent.slices.cdi import CdiFolder
from tessera.agent.slices.claims import SliceClaims
from tessera.agent.slices.device_plugin import SliceDevicePlugin
from tessera.agent.slices.events import (
    FollowUpsDue,
    GpuReleased,
    InitialSyncDone,
    PodChanged,
    PodDeleted,
    RemoveCdiFiles,
    ReportProblem,
    SaveJournal,
)
from tessera.agent.slices.executor import SliceExecutor
from tessera.agent.slices.instaslice_status import InstasliceStatusWriter, NodeDescription, instaslice_event
from tessera.agent.slices.journal import SliceJournalFile
from tessera.agent.slices.metrics import SlicesCollector
from tessera.agent.slices.node_capacity import NodeCapacity
from tessera.agent.slices.state_machine import SliceStateMachine
from tessera.api.instaslice import Instaslice, NodeResources
from tessera.api.names import PodUid
from tessera.clock import Clock
from tessera.kube.backoff import Backoff
from tessera.kube.client.client import Client
from tessera.kube.client.errors import ApiError
from tessera.kube.event_recorder import EventRecorder, make_reference
from tessera.kube.resources import NODES, PODS, Node, Pod
from tessera.kube.watch.cache import EventKind, WatchEvent
from tessera.kubelet.interfaces import Device, Kubelet
from tessera.nvml.asynchronous.async_nvml import AsyncNvml
from tessera.nvml.errors import NvmlError

_log = logging.getLogger(__name__)

#: Seconds after which cards that wait for a reset are looked at again; NVML has no event for it.
RESET_RECHECK = 60.0


class SliceManager:
    """The slicer.

    Args:
        options: which node, which folders.
        client: the API server.
        hardware: the node's cards.
        kubelet: the node's kubelet.
        mirror: node, pods and object; not started yet.
        roles: which cards are the slicer's.
        unfit: whether a card may not be given out for its health.
        take_stock: reads the node's cards for all parts; raises NvmlError if they cannot be listed. Called when MIG
            mode was turned on and before a card is let go, so that nobody goes by what a card was before.
        fixed_gib: memory of the node's fixed slices, GiB; counts towards the quota that the node has, so that a pod
            that was charged for slices on demand can run on them too.
        events: where pods and node are told what happened.
        changes: wakes all parts.
        clock: the time.
        metrics: counts.
        rng: for jitter.
    """

    def __init__(
        self,
        options: AgentOptions,
        *,
        client: Client,
        hardware: AsyncNvml,
        kubelet: Kubelet,
        mirror: ApiMirror,
        roles: CardOwnership,
        unfit: Callable[[str], bool],
        take_stock: Callable[[], Awaitable[object]],
        fixed_gib: Callable[[], int],
        events: EventRecorder,
        changes: ChangeNotifier,
        clock: Clock,
        metrics: Metrics,
        rng: random.Random,
    ) -> None:
        self._options = options
        self._hardware = hardware
        self._kubelet = kubelet
        self._mirror = mirror
        self._roles = roles
        self._unfit = unfit
        self._read_all = take_stock
        self._fixed_gib = fixed_gib
        self._events = events
        self._changes = changes
        self._clock = clock
        self._metrics = metrics
        self._journal = SliceJournalFile(options.journal_file)
        self._book = SliceStateMachine(self._journal.load())
        roles.assume({position.gpu: CardOwner.ON_DEMAND for _, position in self._book.table.owned_positions()})
        self._cdi = CdiFolder(options.cdi_dir)
        metrics.registry.register(SlicesCollector(self._book.table))
        self._take_stock(SliceableGpus())
        self.ready = False
        self._next_look = -math.inf
        self._workers: dict[str, tuple[SliceExecutor, asyncio.Task[None]]] = {}
        self._plugins: dict[str, asyncio.Task[None]] = {}
        self._told: set[tuple[str, str]] = set()
        self._backoff = Backoff(rng)
        self._own = NodeCapacity(client, node_name=options.node_name, namespace=options.namespace)
        self._writer = InstasliceStatusWriter(
            client,
            name=options.node_name,
            namespace=options.namespace,
            seen=mirror.instaslice,
            resources=self._resources,
            slices=self._book.table,
            sweep=self._follow_up,
            changes=changes,
            clock=clock,
            rng=rng,
        )
        self._claims = SliceClaims(
            kubelet=kubelet,
            book=self._book,
            pods=mirror,
            cdi=self._cdi,
            save=self._journal.save,
            hardware=hardware,
            changes=changes,
            clock=clock,
            metrics=metrics,
            timeout=options.claim_timeout,
        )
        mirror.pods.add_handler(self._pod_seen)
        mirror.objects.on_rollback(self._writer.forget_written)
        mirror.objects.add_handler(self._object_seen)

    async def run(self) -> None:
        """Runs until cancelled. The mirror has listed everything, and it is decided who shall have which card.

        Raises:
            NvmlError: the cards cannot be listed at all.
        """
        async with asyncio.TaskGroup() as group:
            await self._hold(group, self._roles.on_demand_gpus(), await read_inventory(self._hardware))
            self._book.handle(InitialSyncDone())
            self._cdi.keep_only(self._book.table.bound_devices())
            self.ready = True
            self._changes.notify()
            group.create_task(self._writer.run())
            await self._stay_converged(group)

    @property
    def inventory(self) -> SliceableGpus:
        """The cards that it has, as they can be cut."""
        return self._inventory

    def busy(self, gpu: str) -> bool:
        """Whether a slice of a card is promised to somebody, or made or about to be."""
        return self._book.table.is_busy(gpu)

    def resources(self) -> frozenset[str]:
        """The extended resources that it serves now."""
        return frozenset(self._plugins)

    def suspect(self, gpu: str | None) -> None:
        """Something happened to a card, or to any one: they are read again."""
        for uuid, (worker, _) in self._workers.items():
            if gpu in {None, uuid}:
                worker.suspect()

    async def _stay_converged(self, group: asyncio.TaskGroup) -> None:
        while True:
            seen = self._changes.count
            waits: float | None = None
            try:
                waits = await self._converge(group)
                self._backoff.reset()
            except (ApiError, ConnectionError, TimeoutError, NvmlError, OSError) as error:
                waits = self._backoff.next()
                _log.warning(
                    "node %s is not as it should be, again in %.1f s: %s", self._options.node_name, waits, error
                )
                await self._clock.sleep(waits)
                continue
            await self._changes.wait(seen, waits)

    async def _converge(self, group: asyncio.TaskGroup) -> float | None:
        """Brings about what follows from the roles; returns when to look again in any case."""
        held = self._roles.on_demand_gpus()
        joined = frozenset(uuid for uuid in held if not self._roles.is_leaving(uuid))
        if held != self._held:
            # Cards come one after the other, and MIG mode of each is to be turned on at once.
            self._next_look = -math.inf
            await self._hold(group, held, await read_inventory(self._hardware))
        node = self._mirror.node()
        if joined and node is not None:
            await self._offer(group, node, joined)
        elif self._occupied():
            self._serve_plugins(group)
        else:
            await self._withdraw(node)
        for uuid in held - joined:
            await self._let_go(uuid)
        return RESET_RECHECK if joined and any(each.waits for each in self._inventory.skipped) else None

    async def _offer(self, group: asyncio.TaskGroup, node: Node, joined: frozenset[str]) -> None:
        if any(each.waits for each in self._inventory.skipped) and self._clock.monotonic() >= self._next_look:
            self._next_look = self._clock.monotonic() + RESET_RECHECK
            await self._hold(group, self._held, await enable_mig(self._hardware, joined))
            await self._read_all()
        self._tell_skipped(node)
        if self._inventory.gpus:
            await self._own.ensure_object(self._mirror.instaslice())
            self._serve_plugins(group)
            await self._own.ensure_quota(node, self._quota + self._fixed_gib())

    async def _withdraw(self, node: Node | None) -> None:
        self._next_look = -math.inf
        for task in self._plugins.values():
            task.cancel()
        self._plugins.clear()
        await self._own.remove_object(self._mirror.instaslice())
        if node is not None:
            await self._own.ensure_quota(node, self._fixed_gib() or None)

    def _occupied(self) -> bool:
        return bool(self._book.table.promises) or any(
            pod is not None for _, pod in self._book.table.observed_instances()
        )

    async def _let_go(self, uuid: str) -> None:
        """Lets go of a card when nothing of it is promised or made and the controller no longer sees it."""
        if self._unused(uuid):
            await self._read_all()
            if self._unused(uuid):
                self._roles.hand_over(uuid)
                self._changes.notify()

    def _unused(self, uuid: str) -> bool:
        told = self._mirror.instaslice()
        listed = told is not None and any(gpu.gpu_uuid == uuid for gpu in told.status.node_resources.node_gpus)
        return not listed and not self._book.table.is_busy(uuid)

    # Parts that come with the cards -----------------------------------------------------------------------------

    async def _hold(self, group: asyncio.TaskGroup, held: frozenset[str], inventory: SliceableGpus) -> None:
        """Takes cards over and gives cards up until it has just those that are its own."""
        inventory = inventory.only(held)
        if held == self._held and inventory == self._inventory:
            return
        self._take_stock(inventory, held)
        for uuid in self._workers.keys() - held:
            _, task = self._workers.pop(uuid)
            task.cancel()
            self._book.handle(GpuReleased(uuid))
        for card in inventory.gpus:
            if card.uuid not in self._workers:
                worker = SliceExecutor(
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

    def _take_stock(self, inventory: SliceableGpus, held: frozenset[str] = frozenset()) -> None:
        """Notes the cards and works out, once, what follows from them alone."""
        self._held = held
        self._inventory = inventory
        self._description = NodeDescription(inventory)
        self._quota = inventory.quota_gib()
        self._device_lists: dict[tuple[str, frozenset[str]], Sequence[Device]] = {}

    def _serve_plugins(self, group: asyncio.TaskGroup) -> None:
        served = self._inventory.resources()
        for resource in self._plugins.keys() - set(served):
            self._plugins.pop(resource).cancel()
        for resource in served:
            if resource not in self._plugins:
                devices = functools.partial(self._devices, resource)
                plugin = SliceDevicePlugin(resource, devices=devices, claims=self._claims, changes=self._changes)
                self._plugins[resource] = group.create_task(self._kubelet.serve(plugin), name=f"plugin {resource}")

    def _devices(self, resource: str) -> Sequence[Device]:
        gone = frozenset(card.uuid for card in self._inventory.gpus if self._withheld(card.uuid))
        devices = self._device_lists.get((resource, gone))
        if devices is None:
            devices = self._device_lists[resource, gone] = self._inventory.devices(resource, unhealthy=gone)
        return devices

    def _withheld(self, uuid: str) -> bool:
        """Whether nothing more of a card is given out."""
        return self._roles.is_leaving(uuid) or self._book.table.is_unreachable(uuid) or self._unfit(uuid)

    # What the watches show --------------------------------------------------------------------------------------

    def _resources(self) -> NodeResources | None:
        node = self._mirror.node()
        if node is None or not self.ready:
            return None
        withheld = frozenset(card.uuid for card in self._inventory.gpus if self._withheld(card.uuid))
        return self._description.resources(self._book.table, node.status.node_info.boot_id, withheld)

    def _object_seen(self, event: WatchEvent[Instaslice]) -> None:
        gone = event.kind is EventKind.DELETED
        if gone:
            self._own.object_gone()
        self._book.handle(instaslice_event(None if gone else event.object))
        self._changes.notify()

    def _pod_seen(self, event: WatchEvent[Pod]) -> None:
        pod = PodUid(event.object.metadata.uid)
        if event.kind is EventKind.DELETED:
            self._book.handle(PodDeleted(pod))
        else:
            over = has_ended(event.object)
            if event.old is not None and has_ended(event.old) == over:
                return
            self._book.handle(PodChanged(pod, over))
        self._changes.notify()

    # What is told to people -------------------------------------------------------------------------------------

    def _follow_up(self) -> None:
        """Carries out the effects outside the GPUs; they come before the status is written.

        Raises:
            OSError: the journal or the CDI folder cannot be written.
        """
        for instruction in self._book.handle(FollowUpsDue()):
            match instruction:
                case ReportProblem():
                    self._report(instruction)
                case RemoveCdiFiles():
                    self._cdi.remove(instruction.devices)
                case SaveJournal():
                    self._journal.save(instruction.journal)

    def _report(self, problem: ReportProblem) -> None:
        promise, node = self._book.table.promises.get(problem.pod), self._mirror.node()
        if promise is not None:
            about = make_reference(PODS, promise.name, promise.namespace, problem.pod)
            self._events.record(about, problem.reason, problem.text, type="Warning")
        elif node is not None:  # the pod is gone, and its slice cannot be destroyed yet
            about = make_reference(NODES, node.metadata.name, uid=node.metadata.uid)
            self._events.record(about, problem.reason, problem.text, type="Warning")

    def _tell_skipped(self, node: Node) -> None:
        about = make_reference(NODES, self._options.node_name, uid=node.metadata.uid)
        for each in self._inventory.skipped:
            if (each.info.uuid, each.reason) not in self._told:
                self._told.add((each.info.uuid, each.reason))
                text = f"card {each.info.uuid} ({each.info.name}) is not used for slices: {each.reason}"
                self._events.record(about, "CardSkipped", text, type="Warning" if each.waits else "Normal")
