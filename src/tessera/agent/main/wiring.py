"""Makes the components of one node's agent and joins them.

Only this module decides which component uses which other one. :mod:`tessera.agent.main.run` decides the order in which
they start.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prometheus_client import generate_latest

from tessera.agent.base.change_notifier import ChangeNotifier
from tessera.agent.base.host import NodeReboot
from tessera.agent.base.metrics import Metrics
from tessera.agent.base.node_objects import ApiMirror, NodeMirror, ObjectEvents, changed_facts, changed_pod_facts
from tessera.agent.base.runtime import AgentEnvironment, AgentRuntime
from tessera.agent.config.config_watcher import ConfigWatcher
from tessera.agent.health.executor import CardResetter
from tessera.agent.health.monitor import HealthMonitor
from tessera.agent.health.pod_preflights import PodPreflights
from tessera.agent.health.pod_reporter import PartHolders, PodReporter
from tessera.agent.health.policy import HealthPolicy
from tessera.agent.health.repairs import CardPreflights, RepairReboots
from tessera.agent.inventory.card_ownership import CardOwnership, StaticGpus
from tessera.agent.inventory.device_users import DeviceUsers
from tessera.agent.inventory.gpu_inventory import InventoryReader
from tessera.agent.main.agent_cards import AgentCards, KnownCardsFile
from tessera.agent.main.machine_programs import MachinePrograms
from tessera.agent.memory.enforcement import MemoryEnforcement
from tessera.agent.memory.monitor import MemoryInputs, MemoryMonitor, ProcessMemoryReader
from tessera.agent.memory.policy import MemoryPolicy, MemoryRules
from tessera.agent.mig_config.drain import DeviceDrainer, RebootRequests
from tessera.agent.mig_config.executor import LayoutJournal, MigExecutor
from tessera.agent.mig_config.reconciler import LayoutReconciler
from tessera.agent.monitoring.exporter import Exporter
from tessera.agent.monitoring.exposition import ExpositionOptions
from tessera.agent.monitoring.sampler import NodeSampler
from tessera.agent.mps.daemons import MpsDaemons
from tessera.agent.node_status.label_facts import SIMULATED_MACHINE, read_machine, read_vgpu
from tessera.agent.node_status.node_facts import MachineFacts
from tessera.agent.node_status.publisher import NodeStatusPublisher
from tessera.agent.node_status.report import NodeReport
from tessera.agent.sharing.allocate_response import AllocateOptions
from tessera.agent.sharing.cdi import CdiFile, CdiPublisher
from tessera.agent.sharing.device_nodes import DeviceNodes
from tessera.agent.sharing.occupancy import DeviceOccupancy
from tessera.agent.sharing.offer import SharingSettings
from tessera.agent.sharing.resource_advertiser import ResourceAdvertiser, StaticDevices
from tessera.agent.sharing.served_resources import AdvertisedNames, ServedResources
from tessera.agent.sharing.strategies import NodeStrategies
from tessera.agent.slices.slice_manager import SliceManager
from tessera.kube.event_recorder import EventRecorder
from tessera.kube.eviction import Evictor
from tessera.kube.resources import NODES
from tessera.kubelet.interfaces import Kubelet
from tessera.nvml.asynchronous.async_nvml import AsyncNvml


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
    ) -> None:
        self.options = options = environment.options
        self.shows_pages = options.http_port is not None or environment.publish is not None
        self._client = client = environment.client
        self.clock = clock = environment.clock
        self._rng = rng = environment.rng
        self._recorders = environment.recorders
        self._processes = environment.processes
        self.hardware = hardware
        self._kubelet = kubelet
        self._programs = MachinePrograms(options, hardware, clock, driver_root)
        self.changes = changes or ChangeNotifier()
        self.metrics = Metrics()
        self.mirror = ApiMirror(
            client, node_name=options.node_name, namespace=options.namespace, clock=clock, rng=rng, node=node
        )
        self.events = EventRecorder(client, component="tessera-agent", instance=options.node_name, clock=clock, rng=rng)
        self._object_events = ObjectEvents(self.events, self.mirror)
        self.inventory_reader = InventoryReader(hardware, self.changes)
        self.device_users = DeviceUsers(kubelet, self.mirror)
        self.cards = AgentCards(
            hardware,
            self.inventory_reader,
            self.mirror,
            self.device_users,
            KnownCardsFile(options.state_dir / "known-cards.json"),
        )
        self.ownership = CardOwnership(options.state_dir / "owners.json")
        self._static_gpus = StaticGpus(self.inventory_reader, self.ownership)
        self.config = self._build_config_watcher()
        self._host = environment.host
        #: What is done about cards with faults is in the health's state, since it outlives an unreadable file.
        self._reboot = NodeReboot(self._host, client, self.mirror, lambda: self.health.state_machine.repairs)
        self.health = self.cards.health = self._build_health()
        self.inventory_reader.add_listener(self.cards.note_inventory)
        self._pod_preflights = PodPreflights(
            self._programs.preflight(),
            health=self.health,
            inventory=self.inventory_reader,
            pods=self.mirror,
            users=self.device_users,
            events=self._object_events,
            clock=clock,
        )
        self.mps = self._build_mps()
        self._drainer = DeviceDrainer(
            kubelet,
            self.mirror,
            Evictor(client) if options.mig_evict else None,
            recent_allocations=lambda: self.advertiser.recent_allocations,
            overcounted_resources=lambda: self.advertiser.overcounted_resources,
        )
        self.mig_config = self._build_mig_config()
        self.slices = self.cards.slices = self._build_slice_manager()
        self.advertiser = self.cards.advertiser = self._build_advertiser()
        self.memory = self._build_memory()
        self.exporter = self._build_exporter()
        self.pod_reporter = self._build_pod_reporter()
        self.node_status = self._build_node_status(host_driver=host_driver)
        #: Detaches the components from objects that outlive them.
        self.detach = self.mirror.nodes.add_handler(lambda event: self.changes.notify(changed_facts(event)))
        self.mirror.pods.add_handler(lambda event: self.changes.notify(changed_pod_facts(event)))

    @property
    def ready(self) -> bool:
        """True if both sides serve kubelet."""
        return self.slices.ready and self.advertiser.serves

    @property
    def has_devices(self) -> bool:
        """True if the node's settings leave any device to advertise."""
        return bool(self.advertiser.offer.resources or self.ownership.on_demand_gpus())

    def metrics_text(self) -> bytes:
        """The text of ``/metrics``."""
        return generate_latest(self.metrics.registry) + self.exporter.text

    # Components --------------------------------------------------------------------------------------------------

    def _build_config_watcher(self) -> ConfigWatcher:
        return ConfigWatcher(
            self._client,
            options=self.options,
            node=self.mirror.node,
            changes=self.changes,
            clock=self.clock,
            rng=self._rng,
        )

    def _build_health(self) -> HealthMonitor:
        monitor = HealthMonitor(
            hardware=self.hardware,
            policy=HealthPolicy.from_environment(self.options.environment),
            faults_file=self.options.state_dir / "health.json",
            node=self._object_events,
            metrics=self.metrics,
            changes=self.changes,
            clock=self.clock,
            resetter=CardResetter(self.hardware, host=self.cards, clock=self.clock),
            reboots=RepairReboots(self._reboot, file=self.options.state_dir / "reboots.json", host=self.cards),
            preflights=CardPreflights(self._programs.preflight(), host=self.cards, clock=self.clock),
            repairs=lambda: self.config.repairs,
        )
        self._recorders.attach("health", monitor.state_machine)
        return monitor

    def _build_mps(self) -> MpsDaemons:
        root = self.options.mps_root
        return MpsDaemons(
            hardware=self.hardware,
            launcher=self._programs.launcher(self.options.mps_mount or root),
            state_file=self.options.state_dir / "mps.json",
            host_root=root,
            changes=self.changes,
            clock=self.clock,
            describe_occupant=self._describe_occupant,
            rng=self._rng,
        )

    def _build_mig_config(self) -> LayoutReconciler:
        journal = LayoutJournal(self.options.state_dir / "layout.json")
        reboots = None
        if self._host is not None and self.options.mig_reboot:
            reboots = RebootRequests(
                self._reboot,
                boot_id=self.mirror.boot_id,
                journal=journal,
                users=self._drainer,
                hardware=self.hardware,
                clock=self.clock,
            )
        return LayoutReconciler(
            desired=lambda: self.config.layout,
            inventory=self.inventory_reader,
            ownership=self.ownership,
            executor=MigExecutor(
                self.hardware,
                inventory=self.inventory_reader,
                journal=journal,
                listener=self.health,
                clock=self.clock,
            ),
            users=self._drainer,
            reboots=reboots,
            recorders=self._recorders,
            changes=self.changes,
            clock=self.clock,
        )

    def _build_slice_manager(self) -> SliceManager:
        runtime = AgentRuntime(
            options=self.options,
            client=self._client,
            events=self.events,
            changes=self.changes,
            clock=self.clock,
            metrics=self.metrics,
            rng=self._rng,
            recorders=self._recorders,
        )
        return SliceManager(
            runtime,
            hardware=self.hardware,
            kubelet=self._kubelet,
            mirror=self.mirror,
            ownership=self.ownership,
            inventory=self.inventory_reader,
            is_unhealthy=self.health.is_unhealthy,
            static_gpus=self._static_gpus,
            start_check=self._pod_preflights,
        )

    def _build_advertiser(self) -> ResourceAdvertiser:
        state_dir = self.options.state_dir
        options = AllocateOptions(
            list_strategies=self.options.device_list_strategies,
            ids_are_uuids=self.options.device_ids_are_uuids,
            pass_device_specs=self.options.pass_device_specs,
        )
        occupancy = DeviceOccupancy(self.device_users, self.changes, state_dir / "given.json", self.clock)
        return ResourceAdvertiser(
            served=ServedResources(self._kubelet, self.changes, self.clock),
            devices=StaticDevices(
                gpus=self._static_gpus.gpus,
                health_of=self.health.health_of,
                changing_devices=lambda: self.mig_config.fenced_devices,
                switching_devices=lambda: self.mps.fenced_devices,
                on_demand_resources=self.slices.resources,
            ),
            settings=SharingSettings(self.config, self.options.mig_strategy, options),
            strategies=NodeStrategies(self.mps),
            cdi=CdiPublisher(CdiFile(self.options.cdi_dir), occupancy, self.changes),
            device_nodes=DeviceNodes(self.hardware, self.clock),
            names=AdvertisedNames(state_dir / "resources.json", self.mirror.node, self._patch_node_status, self.clock),
            changes=self.changes,
            start_check=self._pod_preflights,
        )

    def _build_memory(self) -> MemoryMonitor:
        processes = self._processes
        reader = ProcessMemoryReader(self.hardware, processes)
        policy = MemoryPolicy(MemoryRules(mode=self.options.memory_limits))
        self._recorders.attach("memory", policy)
        return MemoryMonitor(
            reader=reader,
            policy=policy,
            enforcement=MemoryEnforcement(
                mode=self.options.memory_limits,
                processes=processes,
                read_card=reader.read,
                evictor=Evictor(self._client),
                record=self._object_events.record_on_pod,
                metrics=self.metrics,
            ),
            inputs=MemoryInputs(
                offer=lambda: self.advertiser.offer,
                api_reachable=lambda: not self.mirror.nodes.reflector.failures,
                live_pods=self.mirror.live_pods,
                read_users=self.device_users.read,
            ),
            shares_file=self.options.state_dir / "shares.json",
            metrics=self.metrics,
            changes=self.changes,
            clock=self.clock,
        )

    def _build_exporter(self) -> Exporter:
        options = self.options
        sampler = NodeSampler(
            self.hardware,
            self._kubelet,
            inventory=self.inventory_reader,
            offer=lambda: self.advertiser.offer,
            leases=self.slices.leases,
            pods=self.mirror,
            processes=self._processes,
            clock=self.clock,
        )
        series = ExpositionOptions(
            names=options.metric_names,
            node=options.node_name,
            max_series=options.max_series,
            simulated=self.hardware.simulated,
        )
        return Exporter(
            sampler, series, self.changes, self.clock, health=self.health, memory_usage=self.memory.memory_usage
        )

    def _build_pod_reporter(self) -> PodReporter:
        return PodReporter(
            self._client,
            events=self.events,
            pods=self.mirror,
            health=self.health,
            holders=PartHolders(self.device_users, self.slices.leases, self.mirror, self.inventory_reader),
            changes=self.changes,
            clock=self.clock,
            rng=self._rng,
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
            mig_strategy=self.options.mig_strategy,
        )
        simulated = self.hardware.simulated
        product, vgpu = (SIMULATED_MACHINE, None) if simulated else (read_machine(), read_vgpu())
        return NodeStatusPublisher(
            self._client,
            node=self.mirror,
            facts=report.facts,
            conditions=report.conditions,
            machine=MachineFacts(product, vgpu, host_driver),
            events=self.events,
            changes=self.changes,
            clock=self.clock,
            rng=self._rng,
        )

    async def _patch_node_status(self, patch: Mapping[str, Any]) -> None:
        await self._client.merge_patch(NODES, self.mirror.node_name, patch, subresource="status")

    def _describe_occupant(self, uuid: str) -> str:
        """See :meth:`.ResourceAdvertiser.describe_occupant`; the MPS daemons are made before the advertiser."""
        return self.advertiser.describe_occupant(uuid)
