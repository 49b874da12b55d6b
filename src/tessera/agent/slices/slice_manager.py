"""Serves slices on demand on the cards of one node that the on-demand side owns.

:mod:`tessera.agent.inventory.card_ownership` says which cards these are. On them the manager turns on MIG mode, shows
them to the controller in the Instaslice object, advertises every position to kubelet, and adds the memory quota to the
node's capacity. If it must release a card, it offers that card no longer; running pods keep their slices. It releases
the card once the last slice is gone and the controller has seen that. With the last card it removes the object, the
devices and the quota too.
"""

import asyncio
import functools
import logging
import math
from collections.abc import Sequence
from typing import Protocol

from tessera.agent.base.node_objects import ApiMirror, has_ended
from tessera.agent.base.runtime import AgentRuntime
from tessera.agent.inventory.card_ownership import CardOwner, CardOwnership
from tessera.agent.inventory.gpu_inventory import InventoryReader
from tessera.agent.inventory.sliceable_gpus import SliceableGpus, enable_mig, sliceable_gpus
from tessera.agent.inventory.static_gpus import StaticGpus
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
from tessera.agent.slices.node_capacity import NodeCapacity
from tessera.agent.slices.slice_table import SliceJournalFile, SlicesCollector
from tessera.agent.slices.state_machine import SliceStateMachine
from tessera.api.instaslice import Instaslice, NodeResources
from tessera.api.names import PodUid
from tessera.kube.backoff import Backoff
from tessera.kube.client.errors import ApiError
from tessera.kube.event_recorder import make_reference
from tessera.kube.resources import NODES, PODS, Node, Pod
from tessera.kube.watch.cache import EventKind, WatchEvent
from tessera.kubelet.interfaces import Device, Kubelet
from tessera.nvml.asynchronous.async_nvml import AsyncNvml
from tessera.nvml.errors import NvmlError

_log = logging.getLogger(__name__)

#: Seconds after which cards that wait for a reset are read again; NVML has no event for a reset.
RESET_RECHECK = 60.0


class HealthSource(Protocol):
    """Judges GPUs; see :class:`tessera.agent.health.monitor.HealthMonitor`."""

    def is_unhealthy(self, gpu: str, /) -> bool:
        """True if no device of a GPU may be given out because of its health."""
        ...


class SliceManager:
    """Serves slices on demand.

    Args:
        runtime: options, API server, clock and metrics of this agent.
        hardware: changes the GPUs.
        kubelet: the node's kubelet.
        mirror: node, pods and object; not started yet.
        ownership: the side of the agent that has each GPU.
        inventory: the node's GPUs. Read again after MIG mode was turned on and before a GPU is handed over, so that no
            part uses an older reading.
        health: judges GPUs.
        static_gpus: the other GPUs. The memory of their MIG devices counts towards the node's quota, so that a pod that
            was charged for slices on demand can run on them too.
    """

    def __init__(
        self,
        runtime: AgentRuntime,
        *,
        hardware: AsyncNvml,
        kubelet: Kubelet,
        mirror: ApiMirror,
        ownership: CardOwnership,
        inventory: InventoryReader,
        health: HealthSource,
        static_gpus: StaticGpus,
    ) -> None:
        options = runtime.options
        self._runtime = runtime
        self._options = options
        self._hardware = hardware
        self._kubelet = kubelet
        self._mirror = mirror
        self._ownership = ownership
        self._reader = inventory
        self._health = health
        self._static_gpus = static_gpus
        self._events = runtime.events
        self._changes = runtime.changes
        self._clock = runtime.clock
        self._journal = SliceJournalFile(options.journal_file)
        self._machine = SliceStateMachine(self._journal.load())
        runtime.recorders.attach("slices", self._machine)
        ownership.assume({position.gpu: CardOwner.ON_DEMAND for _, position in self._machine.table.owned_positions()})
        self._cdi = CdiFolder(options.cdi_dir)
        runtime.metrics.registry.register(SlicesCollector(self._machine.table))
        self._note_gpus(SliceableGpus())
        self.ready = False
        self._next_look = -math.inf
        self._workers: dict[str, tuple[SliceExecutor, asyncio.Task[None]]] = {}
        self._plugins: dict[str, asyncio.Task[None]] = {}
        self._told: set[tuple[str, str]] = set()
        self._backoff = Backoff(runtime.rng)
        self._capacity = NodeCapacity(runtime.client, node_name=options.node_name, namespace=options.namespace)
        self._writer = InstasliceStatusWriter(runtime, host=self, slices=self._machine.table)
        self._claims = SliceClaims(
            runtime,
            kubelet=kubelet,
            machine=self._machine,
            pods=mirror,
            cdi=self._cdi,
            journal=self._journal,
            hardware=hardware,
        )
        mirror.pods.add_handler(self._pod_seen)
        mirror.objects.on_rollback(self._writer.forget_written)
        mirror.objects.add_handler(self._object_seen)

    async def run(self) -> None:
        """Runs until cancelled. Before the call the mirror has listed all objects, and every card has an owner.

        Raises:
            NvmlError: the cards cannot be listed at all.
        """
        async with asyncio.TaskGroup() as group:
            await self._hold(group, self._ownership.on_demand_gpus(), sliceable_gpus(await self._reader.refresh()))
            self._machine.handle(InitialSyncDone())
            self._cdi.keep_only(self._machine.table.bound_devices())
            self.ready = True
            self._changes.notify()
            group.create_task(self._writer.run())
            await self._stay_converged(group)

    @property
    def inventory(self) -> SliceableGpus:
        """The manager's cards, with the ways in which they can be cut."""
        return self._inventory

    def is_busy(self, gpu: str) -> bool:
        """True if a slice of a card is promised, exists or is about to be made."""
        return self._machine.table.is_busy(gpu)

    def resources(self) -> frozenset[str]:
        """The extended resources that the manager serves now."""
        return frozenset(self._plugins)

    def suspect(self, gpu: str | None) -> None:
        """Has a card read again after an event on it; all cards for ``None``."""
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
        """Brings the cards in line with their owners; returns the seconds until the next look, or ``None``."""
        held = self._ownership.on_demand_gpus()
        joined = frozenset(uuid for uuid in held if not self._ownership.is_leaving(uuid))
        if held != self._held:
            # Cards come one after the other, and MIG mode of each is to be turned on at once.
            self._next_look = -math.inf
            await self._hold(group, held, sliceable_gpus(await self._reader.refresh()))
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
            refused = await enable_mig(self._hardware, joined)
            await self._hold(group, self._held, sliceable_gpus(await self._reader.refresh(), refused))
        self._tell_skipped(node)
        if self._inventory.gpus:
            await self._capacity.ensure_object(self._mirror.instaslice())
            self._serve_plugins(group)
            await self._capacity.ensure_quota(node, self._quota + self._static_gpus.mig_memory_gib())

    async def _withdraw(self, node: Node | None) -> None:
        self._next_look = -math.inf
        for task in self._plugins.values():
            task.cancel()
        self._plugins.clear()
        await self._capacity.remove_object(self._mirror.instaslice())
        if node is not None:
            await self._capacity.ensure_quota(node, self._static_gpus.mig_memory_gib() or None)

    def _occupied(self) -> bool:
        return bool(self._machine.table.promises) or any(
            pod is not None for _, pod in self._machine.table.observed_instances()
        )

    async def _let_go(self, uuid: str) -> None:
        """Releases a card once none of it is promised or made and the controller no longer sees it."""
        if self._unused(uuid):
            await self._reader.refresh()
            if self._unused(uuid):
                self._ownership.hand_over(uuid)
                self._changes.notify()

    def _unused(self, uuid: str) -> bool:
        told = self._mirror.instaslice()
        listed = told is not None and any(gpu.gpu_uuid == uuid for gpu in told.status.node_resources.node_gpus)
        return not listed and not self._machine.table.is_busy(uuid)

    # Parts that come with the cards -----------------------------------------------------------------------------

    async def _hold(self, group: asyncio.TaskGroup, held: frozenset[str], inventory: SliceableGpus) -> None:
        """Takes cards over and releases cards until the manager has exactly its own."""
        inventory = inventory.only(held)
        if held == self._held and inventory == self._inventory:
            return
        self._note_gpus(inventory, held)
        for uuid in self._workers.keys() - held:
            _, task = self._workers.pop(uuid)
            task.cancel()
            self._machine.handle(GpuReleased(uuid))
        for card in inventory.gpus:
            if card.uuid not in self._workers:
                worker = SliceExecutor(
                    card,
                    self._runtime,
                    machine=self._machine,
                    journal=self._journal,
                    hardware=self._hardware,
                    inventory=self._reader,
                )
                await worker.read()
                self._workers[card.uuid] = (worker, group.create_task(worker.run(), name=f"card {card.uuid}"))
        self._changes.notify()

    def _note_gpus(self, inventory: SliceableGpus, held: frozenset[str] = frozenset()) -> None:
        """Notes the cards and computes, once, all values that depend on them alone."""
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
        """True if no further slice of a card may be given out."""
        return (
            self._ownership.is_leaving(uuid)
            or self._machine.table.is_unreachable(uuid)
            or self._health.is_unhealthy(uuid)
        )

    # Objects as the watches show them -------------------------------------------------------------------------------

    def instaslice(self) -> Instaslice | None:
        """The node's Instaslice object as the watch last showed it."""
        return self._mirror.instaslice()

    def node_resources(self) -> NodeResources | None:
        """The node's part of the object's status; ``None`` while unknown."""
        node = self._mirror.node()
        if node is None or not self.ready:
            return None
        withheld = frozenset(card.uuid for card in self._inventory.gpus if self._withheld(card.uuid))
        return self._description.resources(self._machine.table, node.status.node_info.boot_id, withheld)

    def _object_seen(self, event: WatchEvent[Instaslice]) -> None:
        gone = event.kind is EventKind.DELETED
        if gone:
            self._capacity.object_gone()
        self._machine.handle(instaslice_event(None if gone else event.object))
        self._changes.notify()

    def _pod_seen(self, event: WatchEvent[Pod]) -> None:
        pod = PodUid(event.object.metadata.uid)
        if event.kind is EventKind.DELETED:
            self._machine.handle(PodDeleted(pod))
        else:
            over = has_ended(event.object)
            if event.old is not None and has_ended(event.old) == over:
                return
            self._machine.handle(PodChanged(pod, over))
        self._changes.notify()

    # Reports to users -----------------------------------------------------------------------------------------------

    def follow_up(self) -> None:
        """Carries out the effects outside the GPUs; they come before the status is written.

        Raises:
            OSError: the journal or the CDI folder cannot be written.
        """
        for instruction in self._machine.handle(FollowUpsDue()):
            match instruction:
                case ReportProblem():
                    self._report(instruction)
                case RemoveCdiFiles():
                    self._cdi.remove(instruction.devices)
                case SaveJournal():
                    self._journal.save(instruction.journal)

    def _report(self, problem: ReportProblem) -> None:
        promise, node = self._machine.table.promises.get(problem.pod), self._mirror.node()
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
