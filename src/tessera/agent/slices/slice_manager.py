"""Serves slices on demand, and whole cards by ResourceClaims, on the cards of one node that it owns.

:mod:`tessera.agent.inventory.gpu_inventory` says which cards these are. The manager turns on MIG mode of those that it
cuts, shows all of them to the controller in the Instaslice object, advertises every position to kubelet, and adds the
memory quota to the node's capacity. If it must release a card, it offers that card no longer; running pods keep their
slices. It releases the card once the last slice is gone and the controller has seen that. With the last card it removes
the object, the devices and the quota too.
"""

import asyncio
import functools
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from tessera.agent.base.device_plugin import CdiFolder
from tessera.agent.base.node_objects import asks_by_claims, has_ended
from tessera.agent.base.runtime import AgentRuntime
from tessera.agent.base.wake_ups import Fact
from tessera.agent.inventory.device_state import StartCheck
from tessera.agent.inventory.gpu_inventory import CardOwnership, CardShares, InventoryReader, StaticGpus, owner_of
from tessera.agent.inventory.sliceable_gpus import (
    SliceableGpu,
    SliceableGpus,
    SliceLease,
    SlicePosition,
    enable_mig,
    parse_device_id,
    sliceable_gpus,
)
from tessera.agent.slices.container_slices import ContainerSlices, SliceDevicePlugin
from tessera.agent.slices.events import (
    GpuReleased,
    InitialSyncDone,
    PodChanged,
    PodDeleted,
)
from tessera.agent.slices.executor import GpuSliceExecutor, SliceFollowUps, WholeCardExecutor
from tessera.agent.slices.further_ways import MakeSliceGiver, NodeSlices, SliceGiver, recall_loans
from tessera.agent.slices.instaslice_status import (
    InstasliceStatusWriter,
    NodeCapacity,
    NodeDescription,
    instaslice_event,
)
from tessera.agent.slices.slice_table import SliceJournalFile, SlicesCollector, claim_of
from tessera.agent.slices.state_machine import SliceStateMachine
from tessera.api.instaslice import Instaslice, NodeResources
from tessera.api.names import PodUid, resource_of
from tessera.kube.cache import EventKind, WatchEvent
from tessera.kube.errors import ApiError
from tessera.kube.resources import Node, Pod
from tessera.kube.retries import Backoff
from tessera.kubelet.interfaces import Device
from tessera.nvml.errors import NvmlError

_log = logging.getLogger(__name__)

#: Seconds after which cards that wait for a reset are read again; NVML has no event for a reset.
RESET_RECHECK = 60.0
#: What decides about the cards, the plugins, and the API objects of the node.
_INPUTS = Fact.DEVICE_API | Fact.OWNERS | Fact.CARDS | Fact.SLICES | Fact.NODE_STATUS
#: What decides about the devices that kubelet has listed.
_LISTED = Fact.DEVICE_API | Fact.OWNERS | Fact.SLICE_RESOURCES | Fact.HEALTH


class _OwnedCards:
    """The cards that the manager owns, and all values that depend on them alone.

    Attributes:
        uuids: UUIDs of the owned cards.
        claimed: those that ResourceClaims get, and how each is divided.
        inventory: those of them that can be cut.
        description: describes them to the controller.
        quota: their memory quota, GiB.
    """

    def __init__(
        self, uuids: frozenset[str], claimed: Mapping[str, CardShares | None], inventory: SliceableGpus
    ) -> None:
        self.uuids = uuids
        self.claimed = claimed
        self.inventory = inventory
        self.description = NodeDescription(inventory)
        self.quota = inventory.quota_gib()
        #: Device lists by resource and withheld cards; computed when kubelet first needs them.
        self._device_lists: dict[tuple[str, frozenset[str]], Sequence[Device]] = {}

    def devices(self, resource: str, withheld: frozenset[str]) -> Sequence[Device]:
        """The device list of a resource; those of withheld cards are unhealthy."""
        devices = self._device_lists.get((resource, withheld))
        if devices is None:
            devices = self._device_lists[resource, withheld] = self.inventory.devices(resource, unhealthy=withheld)
        return devices


class SliceManager:
    """Serves slices on demand.

    Args:
        runtime: options, API server, kubelet and cards of this agent; its mirror has not started yet.
        ownership: the side of the agent that has each GPU.
        inventory: the node's GPUs. Read again after MIG mode was turned on and before a GPU is released, so that no
            part uses an older reading.
        unhealthy_gpus: UUIDs of the GPUs of which no device may be allocated because of their health; always of now.
        static_gpus: the other GPUs. The memory of their MIG devices counts towards the node's quota, so that a pod that
            was charged for slices on demand can run on them too.
        start_check: tests the slices of pods that ask for it.
        make_giver: makes a further way to give slices; ``None`` for the device plugins alone.
        exclusive_gpus: UUIDs of the cards that an MPS daemon has; always of now.
        faults_evict: true if a fault of a card ends the pods with claims for its slices.

    Attributes:
        resources: the extended resources that the manager serves; always those of now.
    """

    def __init__(
        self,
        runtime: AgentRuntime,
        *,
        ownership: CardOwnership,
        inventory: InventoryReader,
        unhealthy_gpus: AbstractSet[str],
        static_gpus: StaticGpus,
        start_check: StartCheck,
        make_giver: MakeSliceGiver | None,
        exclusive_gpus: AbstractSet[str],
        faults_evict: Callable[[], bool],
    ) -> None:
        options, mirror = runtime.options, runtime.mirror
        self._runtime = runtime
        self._node_name = options.node_name
        self._hardware = runtime.hardware
        self._kubelet = runtime.kubelet
        self._mirror = mirror
        self._ownership = ownership
        self._reader = inventory
        self._unhealthy_gpus = unhealthy_gpus
        self._static_gpus = static_gpus
        self._exclusive_gpus = exclusive_gpus
        self._changes = runtime.changes
        self._clock = runtime.clock
        self._backoff = Backoff(runtime.rng)
        self._journal = SliceJournalFile(options.journal_file)
        self._machine = SliceStateMachine(self._journal.load())
        #: Owners from before Tessera left the node and came back, until the journal has them.
        self._kept = SliceJournalFile(options.kept_file).load()
        self._slices = self._machine.table
        runtime.recorders.attach("slices", self._machine)
        runtime.metrics.registry.register(SlicesCollector(self._slices))
        positions = (*(each for _, each in self._slices.owned_positions()), *map(parse_device_id, self._kept.owners))
        ownership.assume({position.gpu: owner_of(position.profile) for position in positions})
        self._cdi = CdiFolder(options.cdi_dir)
        self._capacity = NodeCapacity(runtime.client, node_name=options.node_name, namespace=options.namespace)
        self._follow_ups = SliceFollowUps(runtime, machine=self._machine, cdi=self._cdi, journal=self._journal)
        self._writer = InstasliceStatusWriter(
            runtime,
            node_resources=self._node_resources,
            cards=lambda: self._cards.description.cards,
            follow_ups=self._follow_ups,
            slices=self._slices,
        )
        self._container_slices = ContainerSlices(
            runtime, machine=self._machine, cdi=self._cdi, journal=self._journal, start_check=start_check
        )
        #: True once all cards were read, so that promises, devices and status can be trusted.
        self.ready = False
        slices = NodeSlices(
            machine=self._machine,
            journal=self._journal,
            reader=inventory,
            cards=lambda: self._cards.inventory,
            is_ready=lambda: self.ready,
            is_withheld=self._is_withheld,
            faults_evict=faults_evict,
        )
        self.giver = SliceGiver() if make_giver is None else make_giver(runtime, slices)
        #: Time at which cards that wait for a reset are read again, monotonic seconds.
        self._next_recheck = -math.inf
        #: By GPU, its executor and the task that runs it; exactly the owned GPUs that can be cut.
        self._executors: dict[str, tuple[GpuSliceExecutor, asyncio.Task[None]]] = {}
        #: By resource, the task that serves its device plugin.
        self._plugins: dict[str, asyncio.Task[None]] = {}
        self.resources: AbstractSet[str] = self._plugins.keys()
        self._cards = _OwnedCards(frozenset(), {}, SliceableGpus())
        mirror.pods.add_handler(self._handle_pod)
        mirror.objects.on_rollback(self._writer.forget_written)
        mirror.objects.add_handler(self._handle_object)

    async def run(self) -> None:
        """Runs until cancelled. Before the call the mirror has listed all objects, and every card has an owner.

        Raises:
            NvmlError: the cards cannot be listed at all.
        """
        async with asyncio.TaskGroup() as group:
            await self._reader.refresh()
            await self._own(group, self._owned())
            self.giver.adopt()
            self._machine.handle(InitialSyncDone(self._kept))
            for loan in list(recall_loans(self._slices, self._cdi.read(), self._mirror.live_pods())):
                self._machine.handle(loan)
            self._forget_kept()
            self._cdi.keep_only(self._slices.bound_devices())
            self.ready = True
            self._changes.notify(Fact.SLICES)
            group.create_task(self._writer.run())
            group.create_task(self.giver.run())
            await self._stay_converged(group)

    def _forget_kept(self) -> None:
        """Removes the file of kept slices once the journal has them."""
        if not self._kept.owners:
            return
        try:
            self._journal.save(self._slices.journal())
            self._runtime.options.kept_file.unlink(missing_ok=True)
        except OSError as error:  # read again at the next start
            _log.warning("%s cannot be removed yet: %s", self._runtime.options.kept_file, error)

    @property
    def inventory(self) -> SliceableGpus:
        """The manager's cards, with the ways in which they can be cut."""
        return self._cards.inventory

    def is_busy(self, gpu: str) -> bool:
        """True if a slice of a card is promised, exists or is about to be made."""
        return self._slices.is_busy(gpu)

    def leases(self) -> Sequence[SliceLease]:
        """The slices that pods hold, with the MIG device of each."""
        used = ((pod, self._slices.instance_at(position)) for pod, position in self.giver.users())
        further = (SliceLease(pod, each[1]) for pod, made in used if made is not None for each in made.computes)
        return [*self._slices.leases(), *further]

    def held(self) -> Iterable[tuple[PodUid, SlicePosition]]:
        """Returns the slices that pods hold; each pod that uses a claim has all that its promise has of the card."""
        owned = [(pod, each.position) for each, pod in self._slices.observed_instances() if pod is not None]
        users = [(user, position.gpu, self._slices.owners.get(position)) for user, position in self.giver.users()]
        others = [(user, each) for user, gpu, owner in users for pod, each in owned if (pod, each.gpu) == (owner, gpu)]
        return dict.fromkeys([*owned, *others])

    def suspect(self, gpu: str | None) -> None:
        """Has a card read again after an event on it; all cards for ``None``."""
        for uuid, (executor, _) in self._executors.items():
            if gpu in {None, uuid}:
                executor.suspect()

    async def _stay_converged(self, group: asyncio.TaskGroup) -> None:
        changes = self._changes.about(_INPUTS)
        while True:
            count = changes.count
            try:
                recheck = await self._converge(group)
            except (ApiError, ConnectionError, TimeoutError, NvmlError, OSError) as error:
                pause = self._backoff.next()
                _log.warning(
                    "slices on demand of node %s: a step failed, next attempt in %.1f s: %s",
                    self._node_name,
                    pause,
                    error,
                )
                await self._clock.sleep(pause)
            else:
                self._backoff.reset()
                await changes.wait(count, recheck)

    async def _converge(self, group: asyncio.TaskGroup) -> float | None:
        """Brings the cards in line with their owners; returns the seconds until the next check, or ``None``."""
        owned = self._owned()
        staying = frozenset(uuid for uuid in owned if not self._ownership.is_leaving(uuid))
        if owned != self._cards.uuids or self._ownership.claimed_gpus() != self._cards.claimed:
            # Cards come one after the other, and MIG mode of each is to be turned on at once.
            self._next_recheck = -math.inf
            await self._reader.refresh()
            await self._own(group, owned)
        node = self._mirror.node()
        if staying and node is not None:
            await self._offer(group, node, staying)
        elif self._has_slices():
            self._serve_plugins(group)
        else:
            await self._withdraw(node)
        for uuid in owned - staying:
            await self._release_if_unused(uuid)
        return RESET_RECHECK if staying and self._waits_for_mig_mode() else None

    def _owned(self) -> frozenset[str]:
        return self._ownership.on_demand_gpus().union(self._ownership.claimed_gpus())

    def _waits_for_mig_mode(self) -> bool:
        """True if a reset or another attempt may turn on MIG mode of a card."""
        return any(each.waits for each in self._cards.inventory.skipped)

    async def _offer(self, group: asyncio.TaskGroup, node: Node, staying: frozenset[str]) -> None:
        if self._waits_for_mig_mode() and self._clock.monotonic() >= self._next_recheck:
            self._next_recheck = self._clock.monotonic() + RESET_RECHECK
            refused = await enable_mig(self._hardware, staying.difference(self._ownership.claimed_gpus()))
            await self._reader.refresh()
            await self._own(group, self._cards.uuids, refused)
        self._follow_ups.indexes = {each.uuid: each.info.index for each in self._cards.inventory.gpus}
        self._follow_ups.report_skipped(node, self._cards.inventory.skipped)
        if self._cards.inventory.gpus:
            await self._capacity.ensure_object(self._mirror.instaslice())
            self._serve_plugins(group)
            await self._capacity.ensure_quota(node, self._cards.quota + self._static_gpus.mig_memory_gib() or None)

    async def _withdraw(self, node: Node | None) -> None:
        self._next_recheck = -math.inf
        if self._plugins:
            self._changes.notify(Fact.SLICE_RESOURCES)
        for task in self._plugins.values():
            task.cancel()
        self._plugins.clear()
        await self._capacity.remove_object(self._mirror.instaslice())
        if node is not None:
            await self._capacity.ensure_quota(node, self._static_gpus.mig_memory_gib() or None)

    def _has_slices(self) -> bool:
        """True if a slice is promised, or an instance of ours exists."""
        return bool(self._slices.promises) or any(pod is not None for _, pod in self._slices.observed_instances())

    async def _release_if_unused(self, uuid: str) -> None:
        """Releases a card once none of it is promised or made and the controller no longer sees it."""
        if self._is_unused(uuid):
            await self._reader.refresh()
            if self._is_unused(uuid):
                self._ownership.transfer(uuid)
                self._changes.notify(Fact.OWNERS)

    def _is_unused(self, uuid: str) -> bool:
        item = self._mirror.instaslice()
        listed = item is not None and any(gpu.gpu_uuid == uuid for gpu in item.status.node_resources.node_gpus)
        return not listed and not self._slices.is_busy(uuid)

    # Executors and plugins of the cards -------------------------------------------------------------------------

    async def _own(
        self, group: asyncio.TaskGroup, owned: frozenset[str], refused: Mapping[str, str] | None = None
    ) -> None:
        """Starts an executor on each new card, and ends those of cards that the manager no longer owns."""
        claimed = self._ownership.claimed_gpus()
        inventory = sliceable_gpus(self._reader.inventory, refused, claimed).only(owned)
        if (owned, claimed, inventory) == (self._cards.uuids, self._cards.claimed, self._cards.inventory):
            return
        divided = {uuid for uuid, shares in claimed.items() if self._cards.claimed.get(uuid, shares) != shares}
        self._cards = _OwnedCards(owned, claimed, inventory)
        for uuid in (self._executors.keys() - owned) | (self._executors.keys() & divided):
            _, task = self._executors.pop(uuid)
            task.cancel()
            self._machine.handle(GpuReleased(uuid))
        for card in inventory.gpus:
            if card.uuid not in self._executors:
                executor = self._make_executor(card)
                await executor.read()
                task = group.create_task(executor.run(), name=f"card {card.uuid}")
                self._executors[card.uuid] = (executor, task)
        shared = any(card.shares is not None for card in inventory.gpus)
        self._changes.notify(Fact.SLICES | Fact.SLICE_RESOURCES | (Fact.OFFER if shared else Fact(0)))

    def _make_executor(self, card: SliceableGpu) -> GpuSliceExecutor:
        kind = WholeCardExecutor if card.is_whole else GpuSliceExecutor
        return kind(
            card,
            self._runtime,
            machine=self._machine,
            journal=self._journal,
            inventory=self._reader,
            exclusive_gpus=self._exclusive_gpus,
        )

    def _serve_plugins(self, group: asyncio.TaskGroup) -> None:
        served = self._served_resources()
        if self._plugins.keys() != set(served):
            self._changes.notify(Fact.SLICE_RESOURCES)
        for resource in self._plugins.keys() - set(served):
            self._plugins.pop(resource).cancel()
        for resource in served:
            if resource not in self._plugins:
                devices = functools.partial(self._list_devices, resource)
                changes = self._changes.about(_LISTED)
                plugin = SliceDevicePlugin(resource, devices=devices, slices=self._container_slices, changes=changes)
                self._plugins[resource] = group.create_task(self._kubelet.serve(plugin), name=f"plugin {resource}")

    def _served_resources(self) -> frozenset[str]:
        """The resources of the cards; where slices are given another way, those that containers got before.

        Kubelet calls their plugin whenever such a container starts again.
        """
        resources = frozenset(self._cards.inventory.resources())
        if not self.giver.is_wanted:
            return resources
        bound = (each for devices in self._slices.bindings.values() for each in devices.items())
        return resources & {resource_of(position.profile) for device, position in bound if not claim_of(device)}

    def _list_devices(self, resource: str) -> Sequence[Device]:
        withheld = self._cards.uuids if self.giver.is_wanted else self._withheld_gpus()
        return self._cards.devices(resource, withheld)

    def _withheld_gpus(self) -> frozenset[str]:
        """UUIDs of the cards of which no further slice may be allocated."""
        return frozenset(card.uuid for card in self._cards.inventory.gpus if self._is_withheld(card.uuid))

    def _is_withheld(self, uuid: str) -> bool:
        return self._ownership.is_leaving(uuid) or self._slices.is_unreachable(uuid) or uuid in self._unhealthy_gpus

    # Objects as the watches show them -------------------------------------------------------------------------------

    def _node_resources(self) -> NodeResources | None:
        """The node's part of the object's status; ``None`` while unknown."""
        node = self._mirror.node()
        if node is None or not self.ready:
            return None
        boot_id = node.status.node_info.boot_id
        return self._cards.description.resources(self._slices, boot_id, self._withheld_gpus())

    def _handle_object(self, event: WatchEvent[Instaslice]) -> None:
        deleted = event.kind is EventKind.DELETED
        if deleted:
            self._capacity.forget_object()
        self._machine.handle(instaslice_event(None if deleted else event.object))
        self._follow_ups.note_promises()
        self._changes.notify(Fact.SLICES)

    def _handle_pod(self, event: WatchEvent[Pod]) -> None:
        pod = PodUid(event.object.metadata.uid)
        if event.kind is EventKind.DELETED:
            self._machine.handle(PodDeleted(pod))
        else:
            ended = has_ended(event.object)
            if event.old is not None and has_ended(event.old) == ended:
                return
            self._machine.handle(PodChanged(pod, ended, asks_by_claims(event.object)))
        self._changes.notify(Fact.SLICES)
