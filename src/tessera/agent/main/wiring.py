"""Makes the parts of one node's agent and joins them.

Only this module decides which part uses which other part. :mod:`tessera.agent.main.run` decides the order in which they
start.
"""

import logging
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

from tessera.agent.base.change_notifier import ChangeNotifier
from tessera.agent.base.metrics import Metrics
from tessera.agent.base.node_objects import ApiMirror, Evictor, ObjectEvents
from tessera.agent.base.options import AgentOptions
from tessera.agent.base.processes import ProcessTable
from tessera.agent.base.runtime import AgentRuntime
from tessera.agent.config.config_watcher import ConfigWatcher
from tessera.agent.health.executor import CardResetter
from tessera.agent.health.monitor import HealthMonitor
from tessera.agent.health.policy import HealthPolicy
from tessera.agent.inventory.card_ownership import CardOwnership
from tessera.agent.inventory.device_users import DeviceUsers
from tessera.agent.inventory.gpu_inventory import InventoryReader
from tessera.agent.inventory.static_gpus import StaticGpus
from tessera.agent.memory.enforcement import MemoryEnforcement
from tessera.agent.memory.inputs import AgentInputs, CardReader
from tessera.agent.memory.monitor import MemoryMonitor
from tessera.agent.memory.policy import MemoryPolicy, MemoryRules
from tessera.agent.mig_config.drain import DeviceDrainer
from tessera.agent.mig_config.executor import MigExecutor
from tessera.agent.mig_config.journal import LayoutJournal
from tessera.agent.mig_config.reboot import RebootRequests
from tessera.agent.mig_config.reconciler import LayoutReconciler
from tessera.agent.mps.daemons import MpsDaemons
from tessera.agent.mps.process_launcher import ProcessLauncher
from tessera.agent.mps.simulated import SimulatedLauncher
from tessera.agent.node_status.label_facts import SIMULATED_MACHINE, read_machine
from tessera.agent.node_status.publisher import MachineFacts, NodeStatusPublisher
from tessera.agent.node_status.report import NodeReport
from tessera.agent.node_status.vgpu import read_vgpu
from tessera.agent.sharing.allocate_response import AllocateOptions
from tessera.agent.sharing.cdi_specs import CdiFile
from tessera.agent.sharing.cdi_writer import CdiPublisher
from tessera.agent.sharing.device_nodes import DeviceNodes
from tessera.agent.sharing.occupancy import DeviceOccupancy
from tessera.agent.sharing.resource_advertiser import ResourceAdvertiser
from tessera.agent.sharing.served_resources import ServedResources
from tessera.agent.sharing.settings import SharingSettings
from tessera.agent.sharing.static_devices import StaticDevices
from tessera.agent.sharing.withdrawn_resources import AdvertisedNames, ResourceRemover
from tessera.agent.slices.slice_manager import SliceManager
from tessera.clock import Clock
from tessera.kube.client.client import Client
from tessera.kube.event_recorder import EventRecorder
from tessera.kube.resources import Node, Pod
from tessera.kube.watch.cache import WatchEvent
from tessera.kube.watch.informer import Informer
from tessera.kubelet.interfaces import Kubelet
from tessera.nvml.asynchronous.async_nvml import AsyncNvml
from tessera.nvml.errors import NvmlError
from tessera.nvml.real.library import program_environment
from tessera.replay.service import Recorders

_log = logging.getLogger(__name__)


class Components:
    """All parts, made and joined, none of them running.

    Args:
        options: the node's name, folders and settings.
        client: the API server.
        hardware: the node's cards.
        kubelet: the node's kubelet.
        clock: the time.
        rng: for jitter.
        reboot: reboots the node, if the options allow it; raises OSError on failure.
        nodes: an existing mirror of the node that outlives these parts.
        changes: the signal of all parts, if other code listens to it too.
        driver_root: folder of the driver's programs, unless they are in the usual places.
        recorders: record the decisions of the deciders, if the options ask for it.
    """

    def __init__(
        self,
        options: AgentOptions,
        client: Client,
        hardware: AsyncNvml,
        kubelet: Kubelet,
        clock: Clock,
        *,
        rng: random.Random,
        reboot: Callable[[], Awaitable[None]] | None,
        nodes: Informer[Node] | None = None,
        changes: ChangeNotifier | None = None,
        driver_root: Path | None = None,
        recorders: Recorders | None = None,
    ) -> None:
        self.options = options
        self._client = client
        self.hardware = hardware
        self._kubelet = kubelet
        self.clock = clock
        self._rng = rng
        self._simulated = hardware.simulated
        self._driver_root = driver_root
        self.changes = changes or ChangeNotifier()
        self.metrics = Metrics()
        self.mirror = ApiMirror(
            client, node_name=options.node_name, namespace=options.namespace, clock=clock, rng=rng, nodes=nodes
        )
        self.events = EventRecorder(client, component="tessera-agent", instance=options.node_name, clock=clock, rng=rng)
        self.object_events = ObjectEvents(self.events, self.mirror, options.node_name)
        self.runtime = AgentRuntime(
            options=options,
            client=client,
            events=self.events,
            changes=self.changes,
            clock=clock,
            metrics=self.metrics,
            rng=rng,
            recorders=recorders or Recorders(),
        )
        self.stock = InventoryReader(hardware, self.changes)
        self.roles = CardOwnership(options.state_dir / "roles.json")
        self.static_gpus = StaticGpus(self.stock, self.roles)
        self.following = self._made_following()
        self.health = self._made_health()
        self.runtime.recorders.attach("health", self.health.state_machine)
        self.mps = self._made_mps()
        self.drainer = DeviceDrainer(kubelet, self.mirror, Evictor(client) if options.mig_evict else None)
        self.layouts = self._made_layouts(reboot if options.mig_reboot else None)
        self.on_demand = self._make_slice_manager()
        self.holders = DeviceUsers(kubelet, self.mirror.live_pods)
        self.shelf = self._make_advertiser()
        self.drainer.advertiser = self.shelf
        self.memory = self._made_memory()
        self.report = NodeReport(
            inventory=self.stock,
            ownership=self.roles,
            following=self.following,
            shelf=self.shelf,
            layouts=self.layouts,
            health=self.health,
            mps=self.mps,
            mig_strategy=options.mig_strategy,
        )
        self.teller = self._made_teller()
        #: Detaches the parts from objects that outlive them.
        self.leave = self.mirror.nodes.add_handler(self._seen)
        self.mirror.pods.add_handler(self._seen)

    @property
    def ready(self) -> bool:
        """True if both sides serve kubelet."""
        return self.on_demand.ready and self.shelf.serves

    @property
    def has_devices(self) -> bool:
        """True if the node's settings leave any device to advertise."""
        return bool(self.shelf.offer.resources or self.roles.on_demand_gpus())

    def _seen(self, _event: WatchEvent[Node] | WatchEvent[Pod]) -> None:
        self.changes.notify()

    # Readings of the cards --------------------------------------------------------------------------------------

    async def take_stock(self) -> None:
        """Reads the cards.

        Raises:
            NvmlError: the cards cannot be listed.
        """
        stock = await self.stock.refresh()
        self.health.set_cards(card.info for card in stock.gpus)

    async def look_again(self, gpu: str | None) -> None:
        """Has a card read again after an event on it; all cards for ``None``."""
        self.on_demand.suspect(gpu)
        try:
            await self.take_stock()
        except NvmlError as error:
            _log.warning("the cards cannot be listed, what was last known of them holds: %s", error)

    # The parts --------------------------------------------------------------------------------------------------

    def _made_following(self) -> ConfigWatcher:
        return ConfigWatcher(
            self._client,
            options=self.options,
            node=self.mirror.node,
            changes=self.changes,
            clock=self.clock,
            rng=self._rng,
        )

    def _made_health(self) -> HealthMonitor:
        return HealthMonitor(
            hardware=self.hardware,
            policy=HealthPolicy.from_environment(self.options.environment),
            faults_file=self.options.state_dir / "health.json",
            node=self.object_events,
            metrics=self.metrics,
            changes=self.changes,
            clock=self.clock,
            resetter=CardResetter(self.hardware, host=self, clock=self.clock),
        )

    def _made_mps(self) -> MpsDaemons:
        root = self.options.mps_root
        real = self._children(self.options.mps_mount or root)
        return MpsDaemons(
            hardware=self.hardware,
            launcher=SimulatedLauncher(self.clock) if self._simulated else real,
            state_file=self.options.state_dir / "mps.json",
            host_root=root,
            changes=self.changes,
            clock=self.clock,
            occupied=self._occupied,
            rng=self._rng,
        )

    def _children(self, root: Path) -> ProcessLauncher:
        if self._driver_root is None:
            return ProcessLauncher(root=root)
        environment = program_environment(self._driver_root, self.options.state_dir / "driver-libraries")
        return ProcessLauncher(root=root, driver_root=self._driver_root, environment=environment)

    def _made_layouts(self, reboot: Callable[[], Awaitable[None]] | None) -> LayoutReconciler:
        journal = LayoutJournal(self.options.state_dir / "layout.json")
        reboots = None
        if reboot is not None:
            reboots = RebootRequests(
                reboot,
                node=self.mirror,
                journal=journal,
                users=self.drainer,
                hardware=self.hardware,
                clock=self.clock,
            )
        reconciler = LayoutReconciler(
            config=self.following,
            inventory=self.stock,
            ownership=self.roles,
            executor=MigExecutor(self.hardware, journal=journal, listener=self.health, clock=self.clock),
            users=self.drainer,
            reboots=reboots,
            changes=self.changes,
            clock=self.clock,
        )
        reconciler.recorders = self.runtime.recorders
        return reconciler

    def _make_slice_manager(self) -> SliceManager:
        return SliceManager(
            self.runtime,
            hardware=self.hardware,
            kubelet=self._kubelet,
            mirror=self.mirror,
            ownership=self.roles,
            inventory=self.stock,
            health=self.health,
            static_gpus=self.static_gpus,
        )

    def _make_advertiser(self) -> ResourceAdvertiser:
        state_dir, mirror = self.options.state_dir, self.mirror
        options = AllocateOptions(
            list_strategies=self.options.device_list_strategies,
            ids_are_uuids=self.options.device_ids_are_uuids,
            pass_device_specs=self.options.pass_device_specs,
        )
        occupancy = DeviceOccupancy(self.holders, self.changes, state_dir / "given.json", self.clock)
        remover = ResourceRemover(self._client, self.options.node_name)
        return ResourceAdvertiser(
            served=ServedResources(self._kubelet, self.changes, self.clock),
            devices=StaticDevices(
                self.static_gpus, health=self.health, mig_config=self.layouts, mps=self.mps, slices=self.on_demand
            ),
            settings=SharingSettings(self.following, self.options.mig_strategy, options),
            mps=self.mps,
            cdi=CdiPublisher(CdiFile(self.options.cdi_dir), occupancy, self.changes),
            device_nodes=DeviceNodes(self.hardware, self.clock),
            names=AdvertisedNames(
                state_dir / "resources.json", node=mirror.node, forget=remover.remove, clock=self.clock
            ),
            changes=self.changes,
        )

    def _made_memory(self) -> MemoryMonitor:
        processes = ProcessTable()
        reader = CardReader(self.hardware, processes)
        policy = MemoryPolicy(MemoryRules(mode=self.options.memory_limits))
        self.runtime.recorders.attach("memory", policy)
        return MemoryMonitor(
            reader=reader,
            policy=policy,
            enforcement=MemoryEnforcement(
                mode=self.options.memory_limits,
                processes=processes,
                cards=reader,
                evictor=Evictor(self._client),
                events=self.object_events,
                metrics=self.metrics,
            ),
            inputs=AgentInputs(self.shelf, self.holders, self.mirror),
            shares_file=self.options.state_dir / "shares.json",
            metrics=self.metrics,
            changes=self.changes,
            clock=self.clock,
        )

    def _made_teller(self) -> NodeStatusPublisher:
        machine = MachineFacts(SIMULATED_MACHINE) if self._simulated else MachineFacts(read_machine(), read_vgpu())
        return NodeStatusPublisher(
            self._client,
            node=self.mirror,
            source=self.report,
            machine=machine,
            events=self.events,
            changes=self.changes,
            clock=self.clock,
            rng=self._rng,
        )

    # Questions between the parts --------------------------------------------------------------------------------

    async def is_unused(self, uuid: str) -> bool:
        """True if no pod has any part of a card, nor is about to get one."""
        card = self.stock.inventory.gpu(uuid)
        parts = {uuid, *(card.mig_attributes if card is not None else ())}
        if self.on_demand.is_busy(uuid) or not parts.isdisjoint(self.shelf.lately_given):
            return False
        return parts.isdisjoint(await self.holders.read())

    def _occupied(self, uuid: str) -> str:
        return self.shelf.occupied(uuid)
