"""The simulated cluster: API server, workload controllers, scheduler and nodes in one event loop.

The assembler knows who takes part and under which name; what each part does is its own business. All parts are ordinary
clients of the API server. They reach it without sockets, whether or not it also listens for kubectl.

Nodes are as a cluster administrator leaves them: registered, and those with cards labelled with a MIG layout, which is
``dynamic`` unless the options say otherwise. More may come and go while the cluster runs.
"""

import asyncio
import contextlib
import itertools
import random
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from tessera.api.names import MIG_CONFIG_DYNAMIC, MIG_CONFIG_LABEL
from tessera.clock import Clock
from tessera.kube.client import Client
from tessera.kube.credentials import Credentials
from tessera.kube.errors import NotFound
from tessera.kube.resources import NODES
from tessera.kube.transport import Transport
from tessera.lab.apiserver.identity import service_account
from tessera.lab.apiserver.inprocess import InProcessTransport
from tessera.lab.apiserver.seams import UserInfo
from tessera.lab.apiserver.server import ApiServer
from tessera.lab.apiserver.webhook_call import HttpCaller, InProcessCaller, WebhookCaller
from tessera.lab.apiserver.webhooks import AdmissionWebhooks
from tessera.lab.kubelet.context import ContainerContext, Direct, Entrypoint, Grpc, KubeletOptions, NodeDirectories
from tessera.lab.kubelet.images import Catalogue
from tessera.lab.kubelet.node import SimulatedNode
from tessera.lab.nfd import discover
from tessera.lab.nodespec import NodeSpec
from tessera.lab.scheduler.scheduler import Scheduler
from tessera.lab.services import ServiceResolver
from tessera.lab.tokens import ContainerToken
from tessera.lab.waits import CountedClock
from tessera.lab.workloads.suite import Workloads
from tessera.nvml.hardware import DRIVER_VERSION
from tessera.nvml.simulated import SimulatedMachine

ADMIN = UserInfo(name="kubernetes-admin", groups=("system:masters", "system:authenticated"))

#: Calls that change a card; what ``slice_seconds`` slows down. Making a slice is two of them, so each takes half.
_SLICE_CALLS = ("create_gpu_instance", "create_compute_instance", "destroy_gpu_instance", "destroy_compute_instance")


class ClusterOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How the simulated world behaves; times in seconds.

    Attributes:
        folder: where nodes keep sockets and files; None joins device plugins in this process, without sockets.
        shared_cards: nodes keep their simulated cards in files (:func:`cards_file`), for agents that others start.
        pull_seconds: an image that a node does not have takes so long to arrive.
        images: what every node has from the start.
        slice_seconds: making a slice takes so long, and removing it as well.
        publish_every: kubelets publish capacity on this period (10 on a real node); None at once.
        boot_seconds: how long a node that reboots is away.
        mig_config: the label ``nvidia.com/mig.config`` of nodes with cards; empty for none.
        network: first two bytes of addresses on which pods that run for real can listen; empty where none listens.
        cdi: the folder of CDI files per node when there is no ``folder``.
        seed: of uids, generated names and jitter.
        catalogue: what registries hold; None for images that have neither size nor program.
        serialise_pulls: nodes pull one image after the other, where images have sizes.
        drivers: machines with cards have no driver until somebody loads one; otherwise their hosts have one.
        kernel: ``uname -r`` of nodes whose specification says nothing.
        os_image: ``PRETTY_NAME`` of their os-release, likewise.
        network_seconds: from a node's start until it has a network and is Ready.
        nfd_seconds: so long after a node is Ready, node feature discovery labels it; None for a cluster without it.
    """

    folder: Path | None = None
    shared_cards: bool = False
    pull_seconds: float = 0.0
    images: frozenset[str] = frozenset()
    slice_seconds: float = 0.0
    publish_every: float | None = None
    boot_seconds: float = 30.0
    mig_config: str = MIG_CONFIG_DYNAMIC
    network: str = ""
    cdi: Path | None = None
    seed: int = 0
    catalogue: Catalogue | None = None
    serialise_pulls: bool = True
    drivers: bool = False
    kernel: str = KubeletOptions.kernel
    os_image: str = KubeletOptions.os_image
    network_seconds: float = 0.0
    nfd_seconds: float | None = None


def cards_file(folder: Path, node: str) -> Path:
    """Where a lab keeps a node's simulated cards that it shares: what an agent is given as ``--simulated-state``."""
    return folder / "n" / node / "cards.json"


def node_folders(options: ClusterOptions, node: str) -> list[Path]:
    """Where a lab keeps what is on one node's disk and in its memory."""
    if options.folder is not None:
        return [options.folder / "n" / node]
    if options.cdi is None:
        return []
    return [options.cdi / each for each in (node, f"{node}-validations", f"{node}-state")]


class Cluster:
    """A simulated cluster.

    Args:
        nodes: which nodes it has.
        clock: its time.
        options: how it behaves.
        entrypoint: made from this cluster, runs the containers of Tessera's own image; None simulates them too.

    Attributes:
        server: the API server.
        nodes: the nodes by name.
        hardware_clock: the clock that calls to simulated cards wait on.
        reviewers: webhooks that run in this process without sockets, by namespace and service.
        connect: how a container with its service account's credentials reaches the server over HTTPS; None where
            the server does not listen.
    """

    def __init__(
        self,
        nodes: Sequence[NodeSpec],
        *,
        clock: Clock,
        options: ClusterOptions | None = None,
        entrypoint: Callable[["Cluster"], Entrypoint] | None = None,
    ) -> None:
        self.clock = clock
        self.hardware_clock = CountedClock(clock)
        self.options = options or ClusterOptions()
        self.server = ApiServer(clock, seed=self.options.seed)
        self.reviewers: dict[tuple[str, str], Callable[[bytes], bytes]] = {}
        self.server.parts.webhooks = self._webhooks()
        self.server.parts.logs = self._logs
        self.connect: Callable[[Credentials], Transport] | None = None
        self._entrypoint = entrypoint(self) if entrypoint is not None else None
        self._numbers = itertools.count(1)
        self._group: asyncio.TaskGroup | None = None
        self._running: dict[str, asyncio.Task[None]] = {}
        self.nodes = {spec.name: self._node(spec) for spec in nodes}

    def _logs(self, namespace: str, pod: str, container: str) -> Sequence[str]:
        for node in self.nodes.values():
            with contextlib.suppress(LookupError):
                return node.logs(namespace, pod, container)
        raise LookupError(f"no node has run container {container} of pod {namespace}/{pod}")

    def _webhooks(self) -> AdmissionWebhooks:
        """Admission webhooks, called over TLS where the server listens, else in this process."""
        core = self.server.core
        caller: WebhookCaller
        if self.options.folder is not None:
            caller = HttpCaller(ServiceResolver(core.store))
        else:
            caller = InProcessCaller(self.reviewers)
        return AdmissionWebhooks(core.store, core.registry, caller, core.new_uid)

    def client(self, component: str, user: UserInfo = ADMIN) -> Client:
        """A client without sockets."""
        return Client(InProcessTransport(self.server, user), field_manager=component, clock=self.clock)

    def account_client(self, component: str, namespace: str, account: str) -> Client:
        """A client without sockets under a service account."""
        return self.client(component, service_account(namespace, account))

    async def container_client(self, context: ContainerContext) -> Client:
        """The API server as a container sees it: with its service account's token where the server listens."""
        component = f"tessera-{context.argv[1]}"
        if self.connect is None:
            return self.account_client(component, context.namespace, context.service_account)
        credentials = ContainerToken(self.client("kubelet"), context, self.clock)
        await credentials.current()  # like kubelet, which starts no container before it has the token
        return Client(self.connect(credentials), field_manager=component, clock=self.clock)

    @property
    def pending(self) -> int:
        """Simulated waits under way that end by themselves."""
        return self.hardware_clock.pending + sum(node.pending for node in self.nodes.values())

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Runs everything inside the block."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(part) for part in self._parts()]
            self._group = group
            for node in self.nodes.values():
                self._start(group, node)
            try:
                yield
            finally:
                self._group = None
                for task in (*tasks, *self._running.values()):
                    task.cancel()

    def add_node(
        self,
        spec: NodeSpec,
        *,
        labels: Mapping[str, str] | None = None,
        taints: Sequence[Mapping[str, Any]] = (),
        provider_id: str = "",
        annotations: Mapping[str, str] | None = None,
    ) -> SimulatedNode:
        """A machine is switched on: its kubelet starts and registers the node. The cluster must be running.

        Args:
            spec: what it is; its name must be free.
            labels: of the Node object beside those that every node has.
            taints: of the Node object from registration on.
            provider_id: ``spec.providerID``.
            annotations: of the Node object, which whoever made the machine sets.

        Raises:
            ValueError: there is a node of that name, or the cluster does not run.
        """
        if self._group is None:
            raise ValueError(f"node {spec.name}: the cluster does not run; add nodes inside `async with running()`")
        if spec.name in self.nodes:
            raise ValueError(f"node {spec.name}: there is one of that name; remove it first")
        node = self._node(
            spec,
            labels=labels or {},
            taints=tuple(taints),
            provider_id=provider_id,
            annotations=annotations or {},
        )
        self.nodes[spec.name] = node
        self._start(self._group, node)
        return node

    async def remove_node(self, name: str) -> None:
        """The machine is switched off for good and its Node object deleted, as a cloud controller does.

        Nothing on it is told before. What is left of its pods is ended by the pod garbage collector.

        Raises:
            ValueError: there is no such node.
        """
        if name not in self.nodes:
            raise ValueError(f"no node {name!r}; there are {', '.join(self.nodes)}")
        task = self._running.pop(name, None)
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        self.nodes.pop(name).forget()
        for folder in node_folders(self.options, name):
            shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(NotFound):
            await self.client("cloud-controller").delete(NODES, name)

    def _start(self, group: asyncio.TaskGroup, node: SimulatedNode) -> None:
        self._running[node.name] = group.create_task(node.run(), name=f"node {node.name}")

    def _discovery(self) -> Callable[[SimulatedNode], Awaitable[None]] | None:
        seconds = self.options.nfd_seconds
        if seconds is None:
            return None
        client = self.client("nfd-master")
        return lambda node: discover(client, node, seconds)

    def _parts(self) -> list[Coroutine[Any, Any, None]]:
        manager, scheduler = self._control_plane("kube-controller-manager"), self._control_plane("kube-scheduler")
        return [
            Workloads(manager, clock=self.clock, rng=self.rng("workloads")).run(),
            Scheduler(scheduler, clock=self.clock, rng=self.rng("scheduler")).run(),
        ]

    def _control_plane(self, name: str) -> Client:
        return self.client(name, UserInfo(name=f"system:{name}", groups=("system:masters", "system:authenticated")))

    def rng(self, part: str) -> random.Random:
        """Chance for one part, the same in every run with the same seed."""
        return random.Random(f"{self.options.seed}/{part}")

    def _node(self, spec: NodeSpec, *, labels: Mapping[str, str] | None = None, **given: Any) -> SimulatedNode:
        options, number = self.options, next(self._numbers)
        groups = ("system:masters", "system:nodes", "system:authenticated")
        return SimulatedNode(
            spec.name,
            self.client("kubelet", UserInfo(name=f"system:node:{spec.name}", groups=groups)),
            machine=self._machine(spec),
            plugins=self._plugins(spec.name),
            clock=self.clock,
            rng=self.rng(spec.name),
            entrypoint=self._entrypoint,
            options=KubeletOptions(
                labels=self._labels(spec) | dict(labels or {}),
                pull_seconds=options.pull_seconds,
                images=options.images,
                publish_every=options.publish_every,
                boot_seconds=options.boot_seconds,
                pod_network=f"{options.network}.{number % 256}" if options.network else f"10.{number % 250}",
                serialise_pulls=options.serialise_pulls,
                kernel=spec.kernel or options.kernel,
                os_image=spec.os_image or options.os_image,
                architecture=spec.architecture,
                network_seconds=options.network_seconds,
                **given,
            ),
            address=f"192.0.2.{number % 250 + 1}",
            catalogue=options.catalogue,
            once_ready=self._discovery(),
        )

    def _labels(self, spec: NodeSpec) -> dict[str, str]:
        if not spec.cards:
            return {}
        layout = {MIG_CONFIG_LABEL: self.options.mig_config} if self.options.mig_config else {}
        # Where features are discovered it is not known before that there are cards.
        return layout if self.options.nfd_seconds is not None else layout | {"nvidia.com/gpu.present": "true"}

    def _machine(self, spec: NodeSpec) -> SimulatedMachine | None:
        if not spec.cards:
            return None
        latencies = dict.fromkeys(_SLICE_CALLS, self.options.slice_seconds / 2)
        state = None
        if self.options.shared_cards and self.options.folder is not None:
            state = cards_file(self.options.folder, spec.name)
            state.parent.mkdir(parents=True, exist_ok=True)
        driver = None if self.options.drivers else DRIVER_VERSION
        return SimulatedMachine(spec.spec, seed=spec.name, latencies=latencies, state=state, driver=driver)

    def _plugins(self, name: str) -> Direct | Grpc:
        if self.options.folder is not None:
            return Grpc(directories=NodeDirectories.under(self.options.folder / "n" / name))
        if self.options.cdi is None:
            return Direct()
        folder, validations, _ = node_folders(self.options, name)
        for each in (folder, validations):
            each.mkdir(parents=True, exist_ok=True)
        return Direct(cdi=folder, validations=validations)
