"""Makes the components of one node's agent and joins them.

Only this module decides which component uses which other one. :mod:`tessera.agent.run` decides the order in which
they start.

Its :class:`AgentCards` are the node's cards for all parts: it has them read again, remembers those of this boot, and
knows who uses them. It is made before the parts that it asks; whoever joins them sets them.

A file has the cards of this boot, so that a restarted agent names a card that no longer answers. A boot may give a card
another index, and a person may have replaced it meanwhile: cards of an earlier boot are not known any more. An agent of
an earlier version has left only the faults of its cards, which have at least their UUIDs.
"""

import logging
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from prometheus_client import generate_latest

from tessera.agent.base.host import NodeReboot
from tessera.agent.base.node_files import StateFile
from tessera.agent.base.node_objects import NodeMirror
from tessera.agent.base.runtime import AgentEnvironment, AgentRuntime, make_runtime
from tessera.agent.base.wake_ups import ChangeNotifier
from tessera.agent.config import ConfigWatcher
from tessera.agent.health.executor import CardResetter
from tessera.agent.health.monitor import HealthMonitor
from tessera.agent.health.pod_preflights import PodPreflights
from tessera.agent.health.pod_reporter import PartHolders, PodReporter
from tessera.agent.health.repairs import CardPreflights, PreflightRunner, RepairReboots
from tessera.agent.inventory.card_topology import TopologyReader
from tessera.agent.inventory.device_state import DeviceUsers
from tessera.agent.inventory.gpu_inventory import CardOwnership, GpuInventory, InventoryReader, StaticGpus
from tessera.agent.mig_config.card_reconciler import RebootRequests
from tessera.agent.mig_config.executor import DeviceDrainer, LayoutJournal, MigExecutor
from tessera.agent.mig_config.reconciler import LayoutReconciler
from tessera.agent.monitoring.exporter import Exporter
from tessera.agent.monitoring.sampler import NodeSampler
from tessera.agent.mps.daemons import MpsDaemons
from tessera.agent.node_status.label_facts import SIMULATED_MACHINE, read_machine, read_vgpu
from tessera.agent.node_status.node_facts import MachineFacts, NodeReport
from tessera.agent.node_status.publisher import NodeStatusPublisher
from tessera.agent.satellites import (
    CORE_ALONE,
    LoadReader,
    MachinePrograms,
    MemoryInputs,
    MemoryWatch,
    NodePrograms,
    NodeSatellites,
)
from tessera.agent.sharing.allocate_response import AllocateOptions, DeviceNodes
from tessera.agent.sharing.device_plugin import CdiFile, CdiPublisher
from tessera.agent.sharing.occupancy import DeviceOccupancy
from tessera.agent.sharing.offer import SharingSettings
from tessera.agent.sharing.resource_advertiser import ResourceAdvertiser, StaticDevices
from tessera.agent.sharing.served_resources import AdvertisedNames, ServedResources
from tessera.agent.sharing.strategies import NodeStrategies
from tessera.agent.slices.slice_manager import SliceManager
from tessera.kube.eviction import Evictor
from tessera.kube.resources import NODES
from tessera.kubelet.interfaces import Kubelet
from tessera.nvml.asynchronous import AsyncNvml
from tessera.nvml.errors import NvmlError
from tessera.nvml.interface import GpuInfo
from tessera.nvml.known_cards import UNREAD, blank_card

_log = logging.getLogger(__name__)


class StoredCards(msgspec.Struct, frozen=True):
    """The content of the file: the node's boot id, and the cards as they were read last."""

    boot: str = ""
    cards: tuple[GpuInfo, ...] = ()


class KnownCardsFile:
    """The file of the cards of this boot.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self._file = StateFile(path, StoredCards)

    def load(self, boot: str, faulty: Collection[str]) -> tuple[GpuInfo, ...]:
        """The cards of this boot.

        Args:
            boot: the node's boot id; not empty.
            faulty: UUIDs of the cards with faults of this boot.
        """
        stored = self._file.load() or StoredCards()
        cards = stored.cards if boot == stored.boot else ()
        missing = set(faulty) - {card.uuid for card in cards}
        return (*cards, *(blank_card(uuid) for uuid in sorted(missing) if not uuid.startswith(UNREAD)))

    def save(self, boot: str, cards: Iterable[GpuInfo]) -> None:
        """Saves the cards that were read at least once in the boot of this id."""
        known = tuple(
            msgspec.structs.replace(card, lost=False, error="")
            for card in cards
            if card.identified and not card.uuid.startswith(UNREAD)
        )
        self._file.save_if_possible(StoredCards(boot, known), "names of cards may not be known")


class AgentCards:
    """The node's cards.

    Args:
        runtime: the cards, and the node's objects.
        inventory: reads the cards.
        users: asks kubelet for the pods that hold devices.

    Attributes:
        health: their health.
        slices: the slices on demand.
        advertiser: the static devices.
    """

    health: HealthMonitor
    slices: SliceManager
    advertiser: ResourceAdvertiser

    def __init__(self, runtime: AgentRuntime, inventory: InventoryReader, users: DeviceUsers) -> None:
        self._hardware = runtime.hardware
        self._inventory = inventory
        self._mirror = runtime.mirror
        self._users = users
        self._known = KnownCardsFile(runtime.state_file("known-cards.json"))
        #: False until the cards of this boot were recalled; the file is not written before.
        self._recalled = False

    async def recall(self) -> bool:
        """Tells the driver's side which cards this boot has had, beside those that were read; false while unknown."""
        boot = self._mirror.boot_id()
        known = self._known.load(boot, self.health.faulty_gpus()) if boot else ()
        await self._hardware.set_known_cards((*known, *(gpu.info for gpu in self._inventory.inventory.gpus)))
        self._recalled = boot != ""
        return self._recalled

    def note_inventory(self, inventory: GpuInventory) -> None:
        """Takes in a reading of the cards, whichever part asked for it."""
        if self._recalled:
            self._known.save(self._mirror.boot_id(), (gpu.info for gpu in inventory.gpus))
        self.health.set_cards(
            (gpu.info for gpu in inventory.gpus), {gpu.uuid: gpu.error for gpu in inventory.gpus if gpu.error}
        )

    async def reread_card(self, gpu: str | None) -> None:
        """Has a card read again after an event on it; all cards for ``None``."""
        await self.reread_cards([gpu])

    async def reread_cards(self, gpus: Iterable[str | None]) -> None:
        """Has cards read again, as :meth:`reread_card` does one."""
        for gpu in gpus:
            self.slices.suspect(gpu)
        try:
            await self._inventory.refresh()
        except NvmlError as error:
            _log.warning("the cards cannot be listed, the last reading stays in use: %s", error)

    async def is_unused(self, uuid: str) -> bool:
        """True if no pod has any part of a card, nor is about to get one."""
        card = self._inventory.inventory.gpu(uuid)
        if card is not None and card.info.mig_enabled and card.error and not card.mig_attributes:
            return False  # its MIG devices are not known, so it is not known who holds them
        parts = {uuid, *(card.mig_attributes if card is not None else ())}
        if self.slices.is_busy(uuid) or not parts.isdisjoint(self.advertiser.recent_allocations):
            return False
        return parts.isdisjoint(await self._users.read())

    async def is_node_empty(self) -> bool:
        """True if no pod has any card of the node, nor is about to get one; a slice on a lost card is nobody's then."""
        if self.slices.giver.has_given or self.advertiser.recent_allocations or await self._users.read():
            return False
        item = self._mirror.instaslice()
        if item is None:
            return True
        recorded = {*item.spec.pod_allocation_requests, *item.status.pod_allocation_results}
        return recorded.isdisjoint(pod.metadata.uid for pod in await self._mirror.list_bound_pods())


class Components:
    """All components of an agent, made and joined, none of them running.

    Args:
        environment: options, API server, clock and recorders of this process.
        hardware: the node's cards.
        kubelet: the node's kubelet.
        node: an existing mirror of the Node object that outlives these components.
        changes: wakes all components, if other code listens to it too.
        driver_root: folder of the driver's programs, unless they are in the usual places.
        host_driver: True if the driver in use is the host's own.
        programs: what runs programs on the node; ``None`` for the machine's own.
        satellites: what runs beside the core.
    """

    def __init__(
        self,
        environment: AgentEnvironment,
        hardware: AsyncNvml,
        kubelet: Kubelet,
        *,
        node: NodeMirror | None = None,
        changes: ChangeNotifier | None = None,
        driver_root: Path | None = None,
        host_driver: bool = False,
        programs: NodePrograms | None = None,
        satellites: NodeSatellites = CORE_ALONE,
    ) -> None:
        self.runtime = runtime = make_runtime(environment, hardware, kubelet, node=node, changes=changes)
        self.shows_pages = runtime.options.http_port is not None or runtime.publish is not None
        programs = programs or MachinePrograms(runtime.options, driver_root)
        self.inventory_reader = InventoryReader(hardware, runtime.changes)
        self.device_users = DeviceUsers(kubelet, runtime.mirror)
        self.cards = AgentCards(runtime, self.inventory_reader, self.device_users)
        self.ownership = CardOwnership(runtime.state_file("owners.json"))
        self._static_gpus = StaticGpus(self.inventory_reader, self.ownership)
        self.config = ConfigWatcher(runtime)
        #: What is done about cards with faults is in the health's state, since it outlives an unreadable file.
        self._reboot = NodeReboot(
            runtime.host, runtime.client, runtime.mirror, lambda: self.health.state_machine.repairs
        )
        self.health = self.cards.health = self._build_health(programs.preflight())
        self.inventory_reader.add_listener(self.cards.note_inventory)
        self._pod_preflights = PodPreflights(
            runtime,
            programs.preflight(),
            health=self.health,
            inventory=self.inventory_reader,
            users=self.device_users,
        )
        launcher = programs.launcher(runtime.options.mps_mount or runtime.options.mps_root)
        self.mps = MpsDaemons(runtime, launcher, self._describe_occupant)
        self.mig_config = self._build_mig_config()
        giver = satellites.giver
        self.slices = self.cards.slices = SliceManager(
            runtime,
            ownership=self.ownership,
            inventory=self.inventory_reader,
            unhealthy_gpus=self.health.state_machine.unhealthy_gpus,
            static_gpus=self._static_gpus,
            start_check=self._pod_preflights,
            make_giver=None if giver is None else lambda runtime, slices: giver(runtime, slices, self.mps),
            exclusive_gpus=self.mps.exclusive_gpus,
            faults_evict=lambda: self.health.state_machine.repairs.evict_claims,
        )
        self.advertiser = self.cards.advertiser = self._build_advertiser()
        inputs = MemoryInputs(
            offer=lambda: self.advertiser.offer,
            api_reachable=lambda: not runtime.mirror.nodes.reflector.failures,
            live_pods=runtime.mirror.live_pods,
            read_users=self.device_users.read,
            cards=lambda: self.slices.inventory,
            held=self.slices.held,
        )
        self.memory = MemoryWatch() if satellites.memory is None else satellites.memory(runtime, inputs)
        loads = satellites.loads
        self.loads = LoadReader() if loads is None else loads(runtime, lambda: self.exporter.holders)
        self.exporter = self._build_exporter()
        holders = PartHolders(self.device_users, self.slices.leases, runtime.mirror, self.inventory_reader)
        self.pod_reporter = PodReporter(runtime, health=self.health, holders=holders)
        self.node_status = self._build_node_status(host_driver=host_driver)
        #: Detaches the components from objects that outlive them.
        self.detach = runtime.mirror.announce(runtime.changes)

    @property
    def ready(self) -> bool:
        """True if both sides serve kubelet."""
        return self.slices.ready and self.advertiser.serves

    @property
    def has_devices(self) -> bool:
        """True if the node's settings leave any device to advertise."""
        promised = self.ownership.on_demand_gpus().union(self.ownership.claimed_gpus())
        return bool(self.advertiser.offer.resources or promised)

    def metrics_text(self) -> bytes:
        """The text of ``/metrics``."""
        return generate_latest(self.runtime.metrics.registry) + self.exporter.text

    # Components --------------------------------------------------------------------------------------------------

    def _build_health(self, runner: PreflightRunner) -> HealthMonitor:
        runtime = self.runtime
        return HealthMonitor(
            runtime,
            resetter=CardResetter(runtime.hardware, host=self.cards, clock=runtime.clock),
            reboots=RepairReboots(self._reboot, file=runtime.state_file("reboots.json"), host=self.cards),
            preflights=CardPreflights(runner, host=self.cards, clock=runtime.clock),
            repairs=lambda: self.config.repairs,
        )

    def _build_mig_config(self) -> LayoutReconciler:
        runtime, options = self.runtime, self.runtime.options
        journal = LayoutJournal(runtime.state_file("layout.json"))
        users = DeviceDrainer(
            runtime,
            Evictor(runtime.client) if options.mig_evict else None,
            recent_allocations=lambda: self.advertiser.recent_allocations,
            overcounted_resources=lambda: self.advertiser.overcounted_resources,
            close=self._close_devices,
        )
        reboots = None
        if runtime.host is not None and options.mig_reboot:
            reboots = RebootRequests(runtime, self._reboot, journal=journal, users=users)
        return LayoutReconciler(
            runtime,
            desired=self.config.layout,
            inventory=self.inventory_reader,
            ownership=self.ownership,
            executor=MigExecutor(
                runtime,
                inventory=self.inventory_reader,
                journal=journal,
                on_reset=self.health.note_card_reset,
                on_destroyed=self.health.note_instance_destroyed,
            ),
            users=users,
            reboots=reboots,
        )

    def _build_advertiser(self) -> ResourceAdvertiser:
        runtime, options, mirror = self.runtime, self.runtime.options, self.runtime.mirror
        allocation = AllocateOptions(
            list_strategies=options.device_list_strategies,
            ids_are_uuids=options.device_ids_are_uuids,
            pass_device_specs=options.pass_device_specs,
        )
        occupancy = DeviceOccupancy(self.device_users, runtime.changes, runtime.state_file("given.json"), runtime.clock)
        names = AdvertisedNames(
            runtime.state_file("resources.json"), mirror.node, self._patch_node_status, runtime.clock
        )
        return ResourceAdvertiser(
            served=ServedResources(runtime.kubelet, runtime.changes, runtime.clock),
            devices=StaticDevices(
                gpus=self._static_gpus.gpus,
                faulty_gpus=self.health.state_machine.faulty_gpus,
                health_of=self.health.state_machine.health_of,
                fences=self.mig_config.fences,
                exclusive_gpus=self.mps.exclusive_gpus,
                switching_devices=self.mps.fenced_devices,
                on_demand_resources=self.slices.resources,
            ),
            settings=SharingSettings(self.config, options.mig_strategy, allocation),
            strategies=NodeStrategies(self.mps),
            cdi=CdiPublisher(CdiFile(options.cdi_dir), occupancy, runtime.changes),
            device_nodes=DeviceNodes(runtime.hardware, runtime.clock),
            names=names,
            changes=runtime.changes,
            start_check=self._pod_preflights,
        )

    def _build_exporter(self) -> Exporter:
        runtime = self.runtime
        sampler = NodeSampler(
            runtime.hardware,
            runtime.kubelet,
            inventory=self.inventory_reader,
            offer=lambda: self.advertiser.offer,
            leases=self.slices.leases,
            claimed=self.ownership.claimed_gpus,
            pods=runtime.mirror,
            processes=runtime.processes,
            clock=runtime.clock,
        )
        topology = TopologyReader(runtime.hardware)
        return Exporter(
            runtime,
            sampler,
            health=self.health,
            memory_usage=self.memory.memory_usage,
            services=lambda: self.loads.usages,
            topology=lambda: topology.read(self.inventory_reader.inventory.gpus),
        )

    def _build_node_status(self, *, host_driver: bool) -> NodeStatusPublisher:
        report = NodeReport(
            inventory=self.inventory_reader,
            ownership=self.ownership,
            config=self.config,
            advertiser=self.advertiser,
            mig_config=self.mig_config,
            health=self.health,
            mps=self.mps,
            mig_strategy=self.runtime.options.mig_strategy,
        )
        simulated = self.runtime.hardware.simulated
        product, vgpu = (SIMULATED_MACHINE, None) if simulated else (read_machine(), read_vgpu())
        machine = MachineFacts(product, vgpu, host_driver)
        return NodeStatusPublisher(self.runtime, facts=report.facts, conditions=report.conditions, machine=machine)

    async def _close_devices(self, devices: frozenset[str]) -> None:
        """See :meth:`.ResourceAdvertiser.close`; the drainer is made before the advertiser."""
        await self.advertiser.close(devices)

    def _describe_occupant(self, uuid: str) -> str:
        """See :meth:`.ResourceAdvertiser.describe_occupant`; the MPS daemons are made before the advertiser.

        A card of ResourceClaims is no business of the advertiser: the claim that wants a daemon has it alone.
        """
        return "" if uuid in self.ownership.claimed_gpus() else self.advertiser.describe_occupant(uuid)

    async def _patch_node_status(self, patch: Mapping[str, Any]) -> None:
        name = self.runtime.options.node_name
        await self.runtime.client.merge_patch(NODES, name, patch, subresource="status")
