"""A simulated node: machine, kubelet and pods. The lab makes one for each node.

The node runs its kubelet as a client of the API server: one watch for its own Node object, one for the pods bound to
it. Device plugins connect over unix sockets or in this process; the rest of the code is the same for both.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Never
from uuid import UUID

from tessera.clock import Clock
from tessera.kube.client import Client
from tessera.kube.errors import NotFound
from tessera.kube.event_recorder import EventRecorder, make_reference
from tessera.kube.resources import CONFIGMAPS, NODES, PODS, SECRETS
from tessera.kube.resources.meta import uid_of
from tessera.nvml.simulated.simulated_machine import SimulatedMachine
from tessera_lab.kubelet.claim_manager import ClaimManager
from tessera_lab.kubelet.containers.environment import CdiRegistry
from tessera_lab.kubelet.containers.gpu_processes import GpuProcesses
from tessera_lab.kubelet.containers.launcher import Launcher, NodeSoftware
from tessera_lab.kubelet.containers.runtime import ContainerRuntime
from tessera_lab.kubelet.context import ContainerHost, GrpcPlugins, InProcessPlugins, KubeletOptions
from tessera_lab.kubelet.devices.device_ledger import PodUid
from tessera_lab.kubelet.devices.device_manager import DeviceManager
from tessera_lab.kubelet.devices.plugin_endpoints import PluginEndpoints
from tessera_lab.kubelet.images.node_images import NodeImages
from tessera_lab.kubelet.node.node_object import KubeletNodeObject
from tessera_lab.kubelet.pods.node_pods import PodWorkers
from tessera_lab.kubelet.pods.node_services import AdmissionRejection, NodeNetwork, NodeServices, check_admission
from tessera_lab.kubelet.servers.server import SimulatedServer
from tessera_lab.scheduler.state.node_cache import CachedPod
from tessera_lab.scheduler.state.pod_requests import parse_amounts
from tessera_lab.simulation.supervision import LabInformer, is_being_cancelled, supervise
from tessera_lab.simulation.virtual_time import CountedClock

Json = Mapping[str, Any]

#: Seconds from the request of a reboot until the machine goes down: systemd ends services first.
SHUTDOWN = 2.0

#: Seconds from a failure of kubelet until systemd starts it again (kubeadm's ``RestartSec``).
KUBELET_RESTART = 10.0

_log = logging.getLogger(__name__)


class _MachineDown(Exception):  # noqa: N818 - not an error: a reboot was requested
    """Ends everything that runs on the machine."""


class SimulatedNode:
    """One node with its kubelet, container runtime and cards.

    Args:
        name: the node's name.
        client: calls the API server as this kubelet.
        machine: the node's simulated cards; None for a node without.
        plugins: how device plugins connect, :class:`InProcessPlugins` or :class:`GrpcPlugins`.
        clock: the node's time.
        rng: for ids and jitter; seed it for repeatable runs.
        software: the programs that its containers can run.
        options: see :class:`KubeletOptions`.

    Attributes:
        name: the node's name.
        machine: its cards.
        processes: the processes of its containers on its cards; None for a node without.
        pods: the pods that are bound to it.
        kernel: ``uname -r`` of the running kernel.
        waits: the node's clock for waits that end by themselves: a lab on virtual time may skip them.
    """

    def __init__(
        self,
        name: str,
        client: Client,
        *,
        plugins: InProcessPlugins | GrpcPlugins,
        clock: Clock,
        rng: random.Random,
        machine: SimulatedMachine | None = None,
        software: NodeSoftware | None = None,
        options: KubeletOptions | None = None,
    ) -> None:
        self.name = name
        self.plugins = plugins
        self.machine = machine
        self.options = options or KubeletOptions()
        self.admission = asyncio.Lock()
        self._client = client
        self._clock = clock
        self._rng = rng
        self._restarting = asyncio.Lock()
        self._reboot_requested = asyncio.Event()
        self._boot_task: Callable[[SimulatedNode], Awaitable[None]] | None = None
        self.waits = CountedClock(clock)
        self.kernel = self._next_kernel = self.options.kernel
        self._booting = False
        self._registered = False
        self._endpoints = PluginEndpoints(plugins, clock)
        self.devices = DeviceManager(
            clock=clock,
            checkpoint=self._endpoints.checkpoint(),
            on_change=self._on_change,
            running_pods=self._running_pods,
            on_health=self._on_health,
            claims=lambda pod, container: self.claims.claim_devices(pod, container),  # noqa: PLW0108 - made below
        )
        self.claims = ClaimManager(
            name,
            client,
            clock=clock,
            checkpoint=self._endpoints.claim_checkpoint(),
            on_health=self._on_health,
        )
        self._events = EventRecorder(client, component="kubelet", instance=name, clock=clock, rng=rng)
        self._nodes = LabInformer(
            client, NODES.as_dicts(), clock=clock, rng=rng, field_selector=f"metadata.name={name}"
        )
        self._object = KubeletNodeObject(
            name,
            client=client,
            clock=clock,
            waits=self.waits,
            options=self.options,
            boot_id=self._new_boot_id(),
            node=self,
        )
        self._nodes.add_handler(lambda _: self._object.notify())
        software = software or NodeSoftware()
        images = NodeImages(
            self.waits,
            images=self.options.images,
            pull_seconds=self.options.pull_seconds,
            catalogue=software.catalogue,
            architecture=self.options.architecture,
            serialised=self.options.serialise_pulls,
        )
        images.on_pulled = self._object.notify
        self.processes = None if machine is None else GpuProcesses(machine, clock.monotonic)
        self._runtime = ContainerRuntime(
            clock=self.waits,
            cdi=CdiRegistry(self._endpoints.cdi_folders()),
            processes=self.processes,
            gpu_memory=self.options.gpu_memory,
            images=images,
        )
        services = NodeServices(
            client=client,
            clock=clock,
            rng=rng,
            events=self._events,
            devices=self.devices,
            claims=self.claims,
            launcher=Launcher(self, entrypoint=software.entrypoint, runtime=self._runtime, clock=clock),
            network=NodeNetwork(self.options.address, self.options.pod_network),
            node=self,
        )
        self.pods = PodWorkers(name, services)

    # For tests and the lab

    @property
    def markers(self) -> Path | None:
        """The node's ``/run/nvidia/validations``; None if the lab keeps no files."""
        return self._endpoints.markers()

    @property
    def pending_waits(self) -> int:
        """Number of present simulated waits that end by themselves: image pulls, programs with an end, a boot."""
        return self.waits.pending + (self._booting or self._reboot_requested.is_set())

    def set_boot_task(self, task: Callable[["SimulatedNode"], Awaitable[None]]) -> None:
        """Runs ``task`` on the node after each boot, once it has a network; it may wait on :attr:`waits`."""
        self._boot_task = task

    def host(self) -> ContainerHost:
        """See :meth:`.LauncherNode.host`."""
        return ContainerHost(
            name=self.name,
            kernel=self.kernel,
            architecture=self.options.architecture,
            machine=self.machine,
            processes=self.processes,
            plugins=self.plugins,
            markers=self.markers,
            reboot=self.reboot,
        )

    def set_nvidia_runtime(self, *, obeys_images: bool) -> None:
        """Sets NVIDIA's runtime, for containers that start from now on: see :class:`.ContainerRuntime`."""
        self._runtime.obeys_images = obeys_images

    def find_server(self, uid: str, port: int) -> SimulatedServer:
        """Returns the simulated server at a port of a pod.

        Raises:
            LookupError: none runs there.
        """
        return self._runtime.servers.find(uid, port)

    # Life

    async def run(self) -> None:
        """Registers the node and runs its pods until cancelled."""
        while True:
            await self._run_until_down()
            if is_being_cancelled():  # a task group that ends by _MachineDown loses a cancellation that came meanwhile
                raise asyncio.CancelledError
            await self._boot()

    def reboot(self, kernel: str = "") -> None:
        """Asks the machine to reboot: it goes down after :data:`SHUTDOWN` seconds and boots in ``boot_seconds``.

        Every process on it ends. Its pods stay bound: their containers start again as their restart policies say. As on
        real nodes, kubelet mostly refuses pods with devices, since their plugins have not registered again.

        Args:
            kernel: the kernel that it boots, ``uname -r``; empty for the running one.
        """
        self._next_kernel = kernel or self.kernel
        self._reboot_requested.set()

    async def _run_until_down(self) -> None:
        """Runs kubelet and the pods until the machine goes down."""
        try:
            async with asyncio.TaskGroup() as group:
                self.pods.open(group)
                group.create_task(
                    supervise(f"kubelet of {self.name}", self._kubelet, self._clock, least=KUBELET_RESTART)
                )
                if self._boot_task is not None:
                    group.create_task(self._run_boot_task(self._boot_task))
                await self._go_down()
        except* _MachineDown:
            pass
        finally:
            self.pods.close()
            await self._close_endpoints()

    async def _kubelet(self) -> None:
        """One run of kubelet; pods that ran before it go on running."""
        follower = LabInformer(
            self._client, PODS.as_dicts(), clock=self._clock, rng=self._rng, field_selector=f"spec.nodeName={self.name}"
        )
        follower.add_handler(self.pods.follow)
        if not self._registered:
            await self._object.register()
            self._registered = True
        try:
            async with asyncio.TaskGroup() as group:
                for part in (self._nodes.run(), self._events.run()):
                    group.create_task(part)
                await self._nodes.wait_synced()
                group.create_task(self._object.run())
                await self._open_endpoints()
                group.create_task(follower.run())
                await follower.wait_synced()
                known = self.pods.remove_missing(uid_of(pod) for pod in follower.cache.values())
                self.devices.release_others(known)
                group.create_task(self.claims.unprepare_others(set(known)))
        except Exception:
            async with self._restarting:
                await self._close_endpoints()
                await self.devices.restart()
            raise

    async def _run_boot_task(self, task: Callable[["SimulatedNode"], Awaitable[None]]) -> None:
        await self._object.wait_for_network()
        try:
            await task(self)
        except Exception:  # noqa: BLE001 - an error of the task, whatever it is, must not end the kubelet
            _log.exception("boot task on %s", self.name)

    async def _go_down(self) -> Never:
        await self._reboot_requested.wait()
        await self._clock.sleep(SHUTDOWN)
        self.pods.node_down()
        raise _MachineDown

    async def _boot(self) -> None:
        async with self._restarting:
            await self._close_endpoints()  # kubelet may have been restarting at that moment
            self._booting = True
            self._reboot_requested.clear()
            self._runtime.images.forget_pulls()
            await self._clock.sleep(self.options.boot_seconds)
            self.kernel = self._next_kernel
            self._endpoints.lose_memory()
            if self.machine is not None:
                self.machine.reboot()
            await self.devices.restart()
            boot_id = self._new_boot_id()
            await self._object.report_boot(boot_id, self.kernel)
            node = self._nodes.cache.get(self.name) or {}
            about = make_reference(NODES, self.name, uid=uid_of(node) if node else "")
            self._events.record(
                about, "Rebooted", f"Node {self.name} has been rebooted, boot id: {boot_id}", type="Warning"
            )
            self._booting = False

    def discard(self) -> None:
        """Frees the resources of a machine that has stopped for good."""
        self._runtime.images.forget_pulls()

    async def restart_kubelet(self, down: float = 0.0) -> None:
        """Stops kubelet and starts it again after ``down`` seconds; containers go on running.

        Device plugins must register again; until then their resources count 0 and kubelet rejects pods that need them.
        """
        async with self._restarting:
            await self._close_endpoints()
            await self._clock.sleep(down)
            await self.devices.restart()
            await self._open_endpoints()

    # Endpoints of plugins

    async def _open_endpoints(self) -> None:
        await self._endpoints.open(self.devices, self.claims)
        self.claims.open()

    async def _close_endpoints(self) -> None:
        await self._endpoints.shut()
        await self.devices.stop()
        await self.claims.stop()

    # For the pods' workers (tessera_lab.kubelet.pods.node_services.WorkerNode)

    def admit_pod(self, pod: CachedPod) -> AdmissionRejection | None:
        """See :meth:`.WorkerNode.admit_pod`."""
        node = self._nodes.cache.get(self.name) or {}
        return check_admission(
            pod,
            name=self.name,
            labels=(node.get("metadata") or {}).get("labels") or {},
            taints=(node.get("spec") or {}).get("taints") or (),
            allocatable=parse_amounts(self.allocatable()),
            others=self.pods.list_other_pods(pod.uid),
        )

    def allocatable(self) -> Mapping[str, str]:
        """The node's allocatable resources now; devices as the device manager counts them, published or not."""
        node = self._nodes.cache.get(self.name) or {}
        allocatable = dict((node.get("status") or {}).get("allocatable") or {})
        return allocatable | {name: str(count) for name, count in self.devices.ledger.counts()[1].items()}

    async def read_data(self, plural: str, namespace: str, name: str) -> Mapping[str, str] | None:
        """See :meth:`.WorkerNode.read_data`."""
        resource = CONFIGMAPS if plural == "configmaps" else SECRETS
        try:
            found = await self._client.get(resource.as_dicts(), name, namespace)
        except NotFound:
            return None
        return found.get("data") or {}

    async def wait_for_network(self) -> None:
        """Returns once the node has its network."""
        await self._object.wait_for_network()

    # For the Node object (tessera_lab.kubelet.node.node_object.DescribedNode)

    def device_counts(self) -> tuple[dict[str, int], dict[str, int]]:
        """See :meth:`.DescribedNode.device_counts`."""
        return self.devices.ledger.counts()

    def current_object(self) -> Json | None:
        """See :meth:`.DescribedNode.current_object`."""
        return self._nodes.cache.get(self.name)

    def images(self) -> list[dict[str, Any]]:
        """See :meth:`.DescribedNode.images`."""
        return self._runtime.images.listed()

    # Small parts

    def _on_change(self) -> None:
        self._object.notify()

    def _on_health(self, uids: Collection[str]) -> None:
        self.pods.note_health(uids)

    def _running_pods(self) -> Sequence[tuple[Json, PodUid]]:
        return self.pods.running_pods()

    def _new_boot_id(self) -> str:
        return str(UUID(int=self._rng.getrandbits(128), version=4))
