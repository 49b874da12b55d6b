"""The simulated cluster: API server, workload controllers, scheduler and nodes in one event loop.

This module makes all parts and starts them under their users' names. All parts are ordinary clients of the API server.
They call it without sockets, also if it listens for kubectl.

Nodes are registered, and those with cards are labelled with a MIG layout, as by a cluster administrator; it is
``dynamic`` unless the options say otherwise. Callers may add and remove nodes while the cluster runs.

A container that runs for real has a service account token (:class:`ContainerToken`), requested and renewed as kubelet
does: once 80 % of its lifetime are over, or at once if the server refuses it. The lab omits the file with the token.

A :class:`ClusterServers` knows what listens in the pods: simulated servers, and Tessera's own processes on their pods'
addresses.
"""

import asyncio
import contextlib
import random
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec

from tessera.clock import Clock, parse_rfc3339
from tessera.kube.client import Client
from tessera.kube.credentials import Credential, Credentials
from tessera.kube.errors import NotFound
from tessera.kube.requests import Request, Response, Transport
from tessera.kube.resources import NODES, SERVICE_ACCOUNTS
from tessera.status_pages import JSON, JsonDocuments
from tessera_lab.apiserver.admission.webhooks.admission_webhooks import AdmissionWebhooks
from tessera_lab.apiserver.admission.webhooks.callers import HttpCaller, InProcessCaller, Reviewer
from tessera_lab.apiserver.authz.identity import BoundObject, bound_pod_extra, service_account_user
from tessera_lab.apiserver.container_log import ContainerLog
from tessera_lab.apiserver.handlers.aggregation import Target
from tessera_lab.apiserver.interfaces import CommandResult, GroupResource, ObjectReader, PodPeer, UserInfo
from tessera_lab.apiserver.kinds.versions import has_taint_rules
from tessera_lab.apiserver.main.inprocess_transport import InProcessTransport
from tessera_lab.apiserver.main.server import ApiServer
from tessera_lab.apiserver.request.server_state import PODS
from tessera_lab.cluster.client_limits import LIMITS, LimitedTransport
from tessera_lab.cluster.front_proxy import FrontProxy
from tessera_lab.cluster.node_maker import NodeMaker
from tessera_lab.cluster.options import ClusterOptions, LabNodeSpec, cards_file, node_folders
from tessera_lab.kubelet.context import ContainerContext, Entrypoint, PodIdentity
from tessera_lab.kubelet.node.node import SimulatedNode
from tessera_lab.kubelet.servers.behaviour import HTTP
from tessera_lab.scheduler.scheduler import Scheduler
from tessera_lab.simulation.supervision import supervise
from tessera_lab.simulation.virtual_time import CountedClock
from tessera_lab.workloads.suite import WorkloadControllers


class ClusterServers:
    """See :class:`~tessera_lab.apiserver.interfaces.PodServers`.

    Args:
        nodes: the nodes by name.
        pods: the stored pods.
        network: first bytes of the addresses on which pods of this lab listen, ``127.9``; empty if none does.
    """

    def __init__(self, nodes: Mapping[str, SimulatedNode], pods: ObjectReader, network: str) -> None:
        self._nodes = nodes
        self._pods = pods
        self._network = network

    async def connect(self, namespace: str, pod: str, port: int) -> PodPeer:
        """Opens a connection to a port of a pod.

        Raises:
            OSError: nothing listens there.
        """
        try:
            node, uid = self._place(namespace, pod)
            address = node.pods.address(uid)
        except LookupError:
            raise ConnectionRefusedError("the pod does not run") from None
        with suppress(LookupError):
            return await node.find_server(uid, port).connect()
        if self._network and address.startswith(f"{self._network}."):
            with suppress(OSError):  # no process of Tessera's own listens either
                return await asyncio.open_connection(address, port)
        hint = f"a pod of the lab serves what its annotation {HTTP} declares"
        raise ConnectionRefusedError(f"dial tcp {address}:{port}: connection refused; {hint}")

    async def answer(self, namespace: str, pod: str, port: int, request: Request) -> Response:
        """Sends a request to a simulated server.

        Raises:
            LookupError: none listens at that port of the pod.
        """
        node, uid = self._place(namespace, pod)
        return await node.find_server(uid, port).answer(request)

    def _place(self, namespace: str, pod: str) -> tuple[SimulatedNode, str]:
        """The node of a pod, and the pod's UID. LookupError: it has none here."""
        found = self._pods.get(PODS, namespace, pod) or {}
        node = self._nodes[(found.get("spec") or {}).get("nodeName", "")]
        return node, found["metadata"]["uid"]


#: The one command of Tessera's own containers that needs nothing but the process in them.
RECORD_COMMAND = ("tessera", "debug", "record", "--here")
#: Part of a token's life after which kubelet renews it.
RENEW_AT = 0.8


class ContainerToken:
    """The credentials of one container.

    Args:
        kubelet: the client that requests tokens.
        pod: the container's pod, to which its tokens are bound.
        clock: says when to renew.
    """

    def __init__(self, kubelet: Client, pod: PodIdentity, clock: Clock) -> None:
        self._kubelet = kubelet
        self._pod = pod
        self._clock = clock
        self._credential: Credential | None = None
        self._renew = 0.0
        self._asking = asyncio.Lock()

    async def current(self) -> Credential:
        """Returns the token, renewed if it is due.

        Raises:
            ApiError: the server issues none, for example since the pod is gone.
        """
        async with self._asking:
            if self._credential is None or self._clock.now() >= self._renew:
                self._credential = await self._ask()
            return self._credential

    def reject(self, credential: Credential) -> bool:
        """Drops a token that the server refused, so that the next call requests another."""
        if credential is self._credential:
            self._credential = None
        return True

    async def _ask(self) -> Credential:
        pod, requested = self._pod, self._clock.now()
        bound = {"kind": "Pod", "apiVersion": "v1", "name": pod.name, "uid": pod.uid}
        answer = await self._kubelet.request(
            "POST",
            SERVICE_ACCOUNTS.path(pod.namespace, pod.service_account, "token"),
            body={
                "apiVersion": "authentication.k8s.io/v1",
                "kind": "TokenRequest",
                "spec": {"boundObjectRef": bound},
            },
        )
        status = msgspec.json.decode(answer.body)["status"]
        self._renew = requested + RENEW_AT * (parse_rfc3339(status["expirationTimestamp"]) - requested)
        return Credential(authorization=f"Bearer {status['token']}")


ADMIN = UserInfo(name="kubernetes-admin", groups=("system:masters", "system:authenticated"))

#: Inputs of a cluster's maker.
__all__ = ["ADMIN", "ClusterOptions", "SimulatedCluster", "cards_file"]


class SimulatedCluster:
    """A simulated cluster.

    Args:
        nodes: its nodes.
        clock: its time.
        options: its options.
        entrypoint: makes, from this cluster, the function that runs Tessera's containers; None simulates them too.

    Attributes:
        server: the API server.
        nodes: the nodes by name.
        hardware_clock: the clock for waits of calls to simulated cards.
        reviewers: webhooks that run in this process without sockets, by namespace and service.
        documents: pages of agents that do not listen, by the pod's address; filled if the options ask for pages.
        services: Services of APIServices that answer in this process, by namespace and name.
        front_proxy: calls all other Services of APIServices; None if the server does not listen.
        connect: connects a container with its service account's credentials to the server over HTTPS; None if the
            server does not listen.
    """

    def __init__(
        self,
        nodes: Sequence[LabNodeSpec],
        *,
        clock: Clock,
        options: ClusterOptions | None = None,
        entrypoint: Callable[["SimulatedCluster"], Entrypoint] | None = None,
    ) -> None:
        self.clock = clock
        self.hardware_clock = CountedClock(clock)
        self.options = options or ClusterOptions()
        self.server = ApiServer(
            clock,
            seed=self.options.seed,
            leaps=self.options.leaps,
            fair_queues=self.options.fair_queues,
            kubernetes=self.options.kubernetes,
        )
        self.reviewers: dict[tuple[str, str], Reviewer] = {}
        self.server.parts.webhooks = self._webhooks()
        self.services: dict[tuple[str, str], Callable[[Request], Awaitable[Response]]] = {}
        self.front_proxy: FrontProxy | None = None
        self.server.aggregator.call = self._call_service
        if self.options.folder is not None:
            self.front_proxy = FrontProxy(ServiceResolver(self.server.core.store), clock)
            self.front_proxy.announce(self.server.core)
        self.server.parts.logs = self._log
        self.server.parts.run_command = self._run_command
        #: Run :data:`RECORD_COMMAND` in containers that run for real, by namespace, pod and container, while they run.
        self.commands: dict[tuple[str, str, str], Callable[[], Awaitable[CommandResult]]] = {}
        self.documents: dict[str, JsonDocuments] = {}
        if self.options.pages:
            self.server.parts.get_page = self._get_document
        self.connect: Callable[[Credentials], Transport] | None = None
        self._maker = NodeMaker(
            self.options,
            client=self.client,
            clock=clock,
            rng=self.rng,
            entrypoint=entrypoint(self) if entrypoint is not None else None,
        )
        self._group: asyncio.TaskGroup | None = None
        self._running: dict[str, asyncio.Task[None]] = {}
        self.nodes = {spec.name: self._maker.make_node(spec) for spec in nodes}
        self.server.parts.servers = ClusterServers(self.nodes, self.server.core.store, self.options.network)

    async def _call_service(self, target: Target, request: Request) -> Response:
        """Sends a request to a Service of an APIService."""
        own = self.services.get((target.namespace, target.name))
        if own is not None:
            return await own(request)
        if self.front_proxy is None:
            raise LookupError(f"service {target.namespace}/{target.name}")
        return await self.front_proxy(target, request)

    async def _get_document(
        self,
        address: str,
        port: int,  # noqa: ARG002 - it has one port
        path: str,
        headers: Mapping[str, str],  # noqa: ARG002 - no port guards it
    ) -> Response:
        """Gets a page of an agent that does not listen."""
        return Response(status=200, headers={"content-type": JSON}, body=self.documents[address][path]())

    def _log(self, namespace: str, pod: str, container: str, previous: bool = False) -> ContainerLog:
        for node in self.nodes.values():
            with contextlib.suppress(LookupError):
                return node.pods.log(namespace, pod, container, previous=previous)
        raise LookupError(f"no node has run container {container} of pod {namespace}/{pod}")

    async def _run_command(self, namespace: str, pod: str, container: str, command: Sequence[str]) -> CommandResult:
        run = self.commands.get((namespace, pod, container))
        if run is not None and tuple(command) == RECORD_COMMAND:
            return await run()
        for node in self.nodes.values():
            with contextlib.suppress(LookupError):
                return node.pods.run_command(namespace, pod, container, command)
        raise LookupError(f"no node runs container {container} of pod {namespace}/{pod}")

    def _webhooks(self) -> AdmissionWebhooks:
        """Returns admission webhooks: those of :attr:`reviewers`, and over TLS all others if the server listens."""
        core = self.server.core
        others = HttpCaller(ServiceResolver(core.store)) if self.options.folder is not None else None
        return AdmissionWebhooks(core.store, core.registry, InProcessCaller(self.reviewers, others), core.new_uid)

    def client(self, component: str, user: UserInfo = ADMIN) -> Client:
        """A client without sockets."""
        return Client(InProcessTransport(self.server, user), field_manager=component, clock=self.clock)

    def account_client(self, component: str, account: UserInfo) -> Client:
        """A client without sockets for a container, under its service account."""
        return self.client(component, account)

    async def container_client(self, context: ContainerContext) -> Client:
        """Makes a container's client: with its service account's token if the server listens."""
        component = f"tessera-{context.argv[1]}"
        if self.connect is None:
            pod, node = BoundObject(context.pod.name, context.pod.uid), BoundObject(context.host.name, "")
            extra = bound_pod_extra(pod, node)
            return self.account_client(
                component, service_account_user(context.pod.namespace, context.pod.service_account, extra=extra)
            )
        credentials = self.token(context.pod)
        await credentials.current()  # like kubelet, which starts no container before it has the token
        return Client(self.connect(credentials), field_manager=component, clock=self.clock)

    def token(self, pod: PodIdentity) -> ContainerToken:
        """Returns the credentials of a pod's containers."""
        return ContainerToken(self.client("kubelet"), pod, self.clock)

    @property
    def pending_waits(self) -> int:
        """Number of present simulated waits that end by themselves."""
        return self.hardware_clock.pending + sum(node.pending_waits for node in self.nodes.values())

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Runs everything inside the block."""
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(supervise(name, part, self.clock), name=name) for name, part in self._parts().items()
            ]
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
        spec: LabNodeSpec,
        *,
        labels: Mapping[str, str] | None = None,
        taints: Sequence[Mapping[str, Any]] = (),
        provider_id: str = "",
        annotations: Mapping[str, str] | None = None,
    ) -> SimulatedNode:
        """Starts a machine: its kubelet registers the node. The cluster must be running.

        Args:
            spec: the node; its name must be free.
            labels: labels of the Node object besides those that every node has.
            taints: taints of the Node object from registration on.
            provider_id: ``spec.providerID``.
            annotations: annotations of the Node object, set by the maker of the machine.

        Raises:
            ValueError: there is a node of that name, or the cluster does not run.
        """
        if self._group is None:
            raise ValueError(f"node {spec.name}: the cluster does not run; add nodes inside `async with running()`")
        if spec.name in self.nodes:
            raise ValueError(f"node {spec.name}: there is one of that name; remove it first")
        node = self._maker.make_node(
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
        """Switches the machine off for good and deletes its Node object, as a cloud controller does.

        Its processes get no warning. The pod garbage collector deletes its pods.

        Raises:
            ValueError: there is no such node.
        """
        if name not in self.nodes:
            raise ValueError(f"no node {name!r}; there are {', '.join(self.nodes)}")
        task = self._running.pop(name, None)
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        self.nodes.pop(name).discard()
        for folder in node_folders(self.options, name):
            shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(NotFound):
            await self.client("cloud-controller").delete(NODES, name)

    def _start(self, group: asyncio.TaskGroup, node: SimulatedNode) -> None:
        name = f"node {node.name}"
        self._running[node.name] = group.create_task(supervise(name, node.run, self.clock), name=name)

    def _parts(self) -> Mapping[str, Callable[[], Coroutine[Any, Any, None]]]:
        """Returns the control plane's programs by name; each call makes a new program without the state of the last."""
        manager, scheduler = self._control_plane("kube-controller-manager"), self._control_plane("kube-scheduler")
        rules = has_taint_rules(self.options.kubernetes)
        return {
            "kube-controller-manager": lambda: WorkloadControllers(
                manager, clock=self.clock, rng=self.rng("workloads"), taint_rules=rules
            ).run(),
            "kube-scheduler": lambda: Scheduler(
                scheduler, clock=self.clock, rng=self.rng("scheduler"), taint_rules=rules
            ).run(),
        }

    def _control_plane(self, name: str) -> Client:
        user = UserInfo(name=f"system:{name}", groups=("system:masters", "system:authenticated"))
        if not self.options.client_limits:
            return self.client(name, user)
        limited = LimitedTransport(InProcessTransport(self.server, user), self.clock, *LIMITS[name])
        return Client(limited, field_manager=name, clock=self.clock)

    def rng(self, part: str) -> random.Random:
        """Returns the random numbers of one part, the same in every run with the same seed."""
        return random.Random(f"{self.options.seed}/{part}")


_SERVICES, _ENDPOINTS = GroupResource("", "services"), GroupResource("", "endpoints")


class ServiceResolver:
    """Resolves namespace, service and port to an address; always the first ready one, without load balancing."""

    def __init__(self, reader: ObjectReader) -> None:
        self._reader = reader

    def __call__(self, namespace: str, name: str, port: int) -> tuple[str, int] | None:
        """Returns host and port of a ready pod; None if there is no such service, port or ready pod."""
        service = self._reader.get(_SERVICES, namespace, name)
        endpoints = self._reader.get(_ENDPOINTS, namespace, name)
        if service is None or endpoints is None:
            return None
        named = next((each.get("name") for each in service["spec"].get("ports", ()) if each["port"] == port), None)
        for subset in endpoints.get("subsets") or ():
            found = _port(subset, named)
            for address in subset.get("addresses") or ():
                if found is not None:
                    return address["ip"], found
        return None


def _port(subset: Mapping[str, Any], name: str | None) -> int | None:
    return next((each["port"] for each in subset.get("ports") or () if each.get("name") == name), None)
