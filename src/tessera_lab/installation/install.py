"""Runs Tessera inside the lab as users install it: the manifests of ``deploy/``, each container the production process.

A container reaches the API server under its service account: over HTTPS with a token where the lab listens, else
without sockets under the same identity, so that RBAC holds either way. An agent on a node that was started without
cards finds no driver and waits for one, as on a real node (:class:`MissingDriver`).
"""

import asyncio
import dataclasses
import os
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from tessera.agent.base.host import RunOnHost
from tessera.agent.base.settings import AgentOptions
from tessera.agent.base.wake_ups import ChangeNotifier
from tessera.agent.driver.hardware import DriverBackend, DriverHome
from tessera.agent.lifecycle import run_lifecycle
from tessera.agent.simulated import SimulatedDriver, SimulatedPrograms
from tessera.api.names import CLAIM_PLACEMENTS
from tessera.claims.agent.claim_server import serve_claims
from tessera.cli.agent import node_satellites
from tessera.cli.install.apply import render
from tessera.cli.install.manifests import InstallChoices
from tessera.clock import Clock
from tessera.controller.main import run as run_controller
from tessera.controller.satellite import ControllerOptions
from tessera.dashboard.in_cluster import PageOptions, PageReplica
from tessera.doctor.manifests import install_manifests, page_manifests
from tessera.driver.satellite import DriverSatellite
from tessera.kube.client import Client
from tessera.kube.resources.meta import resource_for
from tessera.kubelet.grpc import GrpcKubelet
from tessera.kubelet.interfaces import Kubelet
from tessera.nvml.asynchronous import AsyncNvml
from tessera.nvml.errors import DriverNotLoaded, NvmlError
from tessera.nvml.simulated.simulated_machine import SimulatedMachine
from tessera.replay.recorder import NO_RECORDS, fetch_records
from tessera.webhook.base import WebhookOptions
from tessera.webhook.main import WebhookReplica
from tessera_lab.apiserver.interfaces import CommandResult
from tessera_lab.drivers.driver_catalogue import SimulatedResolver
from tessera_lab.installation.process_logs import enter_container
from tessera_lab.kubelet.context import ContainerContext, Entrypoint, InProcessPlugins
from tessera_lab.kubelet.images.catalogue import ImageCatalogue

if TYPE_CHECKING:
    from tessera_lab.cluster.cluster import SimulatedCluster

Parsed = Callable[[Sequence[str], Mapping[str, str]], Any]


#: Runs a command to its end, with its arguments, the container's client and clock, and the container's log.
Runs = Callable[[Sequence[str], Client, Clock, Callable[[str], None]], Awaitable[None]]


#: Runs a command on the cards of a node, None for a node without any.
RunsOnCards = Callable[[Sequence[str], SimulatedMachine | None, Clock, Callable[[str], None]], Awaitable[None]]


class RunsOperator(Protocol):
    """Runs ``tessera operator`` until cancelled."""

    async def __call__(
        self, arguments: Sequence[str], environment: Mapping[str, str], seat: "OperatorSeat", client: Client
    ) -> None:
        """See the class.

        Args:
            arguments: the container's arguments.
            environment: its environment.
            seat: what the lab gives it.
            client: the API server, under the container's account.
        """
        ...


class OperatorSeat(msgspec.Struct, frozen=True):
    """What the lab gives an operator besides its arguments.

    Attributes:
        clock: gives the time.
        rng: for jitter.
        address: address of its health pages; None if it cannot listen.
    """

    clock: Clock
    rng: random.Random
    address: str | None


class TesseraCommands(msgspec.Struct, frozen=True):
    """Parsers of each process's arguments and environment; the command line injects its own parsers.

    Attributes:
        agent: parser of ``tessera agent``.
        controller: parser of ``tessera controller``.
        webhook: parser of ``tessera webhook``.
        dashboard: parser of ``tessera dashboard --in-cluster``.
        driver: runs ``tessera driver apply``.
        operator: runs ``tessera operator``.
        uninstall: runs ``tessera uninstall --from-hook``.
        accept: runs ``tessera accept`` on a node's cards.
    """

    agent: Parsed
    controller: Parsed
    webhook: Parsed
    dashboard: Parsed
    driver: Runs
    operator: RunsOperator
    uninstall: Runs
    accept: RunsOnCards


def build_entrypoint(commands: TesseraCommands) -> "Callable[[SimulatedCluster], Entrypoint]":
    """Makes the function that runs Tessera's containers in a cluster."""

    def bound(cluster: "SimulatedCluster") -> Entrypoint:
        runs = Counter[str]()

        async def run(context: ContainerContext) -> int:
            enter_container(context)
            runs[context.pod.uid] += 1  # a process that starts again does not draw what its predecessor drew
            rng = random.Random(f"{cluster.options.seed}/{context.pod.uid}/{runs[context.pod.uid]}")
            client = await cluster.container_client(context)
            key = context.pod.namespace, context.pod.name, context.container
            cluster.commands[key] = partial(_record, _record_socket(context))
            try:
                match context.argv[1]:
                    case "agent":
                        await _agent(cluster, commands.agent(context.argv[2:], context.env), context, client, rng)
                    case "controller":
                        options: ControllerOptions = commands.controller(context.argv[2:], context.env)
                        options = _in_lab(options, context, _registry(cluster))
                        await run_controller(options, client, context.clock, rng=rng)
                    case "dashboard":
                        await _dashboard(commands.dashboard(context.argv[2:], context.env), context, client, rng)
                    case "driver":
                        await commands.driver(context.argv[2:], client, context.clock, context.log)
                    case "uninstall":
                        await commands.uninstall(context.argv[2:], client, context.clock, context.log)
                    case "accept":
                        machine = context.host.machine
                        await commands.accept(context.argv[2:], machine, context.clock, context.log)
                    case "operator":
                        seat = OperatorSeat(context.clock, rng, context.pod.ip if _listens(context) else None)
                        await commands.operator(context.argv[2:], context.env, seat, client)
                    case _:
                        options_: WebhookOptions = commands.webhook(context.argv[2:], context.env)
                        await _webhook(cluster, options_, context, client, rng)
            finally:
                cluster.commands.pop(key, None)
                await client.close()
            return 0

        return run

    return bound


def _registry(cluster: "SimulatedCluster") -> SimulatedResolver:
    """The image resolver of a controller in the lab. It asks no real registry, so it reads no file of authorities."""
    return SimulatedResolver(cluster.options.catalogue or ImageCatalogue(), cluster.clock)


def _in_lab(options: ControllerOptions, context: ContainerContext, resolver: SimulatedResolver) -> ControllerOptions:
    """Pods of the lab share one machine's ports and sockets: each listens on its own address, or not at all."""
    satellites = tuple(
        dataclasses.replace(each, resolver=resolver) if isinstance(each, DriverSatellite) else each
        for each in options.satellites
    )
    options = dataclasses.replace(options, record_socket=_record_socket(context), satellites=satellites)
    if _listens(context):
        return dataclasses.replace(options, http_address=context.pod.ip)
    return dataclasses.replace(options, http_port=None)


def _listens(context: ContainerContext) -> bool:
    """True if the pod's address is one of this machine, on which its container can listen."""
    return context.host.plugins.directories is not None


def _record_socket(context: ContainerContext) -> str:
    """The name under which a process offers its records; a real container has a network namespace of its own."""
    return f"tessera-lab-{os.getpid()}-{context.pod.uid}"


async def _record(socket: str) -> CommandResult:
    """Runs ``tessera debug record --here``."""
    try:
        return CommandResult(0, await fetch_records(socket))
    except ConnectionRefusedError:
        return CommandResult(1, stderr=f"error: {NO_RECORDS}\n".encode())


async def _agent(
    cluster: "SimulatedCluster", options: AgentOptions, context: ContainerContext, client: Client, rng: random.Random
) -> None:
    # Where the host has its driver nobody waits for markers, and a machine has 128 inotify instances for all its nodes.
    waits = context.host.machine is not None and context.host.machine.host_driver is None
    markers = context.host.markers if waits else None
    listening = {"http_address": context.pod.ip} if _listens(context) else {"http_port": None}
    options = msgspec.structs.replace(options, markers_dir=markers, **listening, **_folders(context))
    options = msgspec.structs.replace(options, record_socket=_record_socket(context))
    options.state_dir.mkdir(parents=True, exist_ok=True)
    clock = context.clock
    driver: DriverBackend = MissingDriver(context.host.name)
    programs = None
    if context.host.machine is not None:
        driver = SimulatedDriver(context.host.machine, cluster.hardware_clock)
        programs = SimulatedPrograms(context.host.machine, clock)
    processes = context.host.processes
    await run_lifecycle(
        options,
        client,
        driver,
        _kubelet(context),
        clock,
        rng=rng,
        host=_host(context),
        processes=processes,
        programs=programs,
        satellites=node_satellites(options),
        on_started=context.ready,
        publish=partial(cluster.documents.__setitem__, context.pod.ip) if cluster.options.pages else None,
    )


def _host(context: ContainerContext) -> RunOnHost:
    """The host of a simulated node: every command reboots it, as whoever is asked by the command would."""

    async def run(_command: Sequence[str]) -> None:
        context.host.reboot()

    return run


def _kubelet(context: ContainerContext) -> Kubelet:
    if isinstance(context.host.plugins, InProcessPlugins):
        return context.host.plugins.bus
    folders = context.host.plugins.directories
    return GrpcKubelet(
        folders.plugins,
        folders.pod_resources / "kubelet.sock",
        registry=folders.registry,
        claim_plugins=folders.claim_plugins,
        serve_claims=serve_claims,
        clock=context.clock,
    )


def _folders(context: ContainerContext) -> dict[str, Any]:
    """The lab's folders for the paths that the manifest mounts from the host."""
    plugins = context.host.plugins
    folders = plugins.directories
    if folders is None:
        assert isinstance(plugins, InProcessPlugins)
        assert plugins.cdi is not None, "a node with cards has a CDI folder"
        return {"cdi_dir": plugins.cdi, "state_dir": plugins.cdi.parent / f"{context.host.name}-state"}
    return {
        "plugin_dir": folders.plugins,
        "pod_resources_dir": folders.pod_resources,
        "cdi_dir": folders.cdi,
        "state_dir": folders.state,
    }


async def _webhook(
    cluster: "SimulatedCluster", options: WebhookOptions, context: ContainerContext, client: Client, rng: random.Random
) -> None:
    options = dataclasses.replace(options, address=context.pod.ip)
    if not _listens(context):
        options = dataclasses.replace(options, port=None, health_port=None)
    webhook = WebhookReplica(options, client, context.clock, rng=rng)
    if not _listens(context):
        cluster.reviewers[(options.namespace, options.service)] = webhook.review
        for path, review in webhook.reviews.items():
            cluster.reviewers[(options.namespace, options.service + path)] = review
    await webhook.run()


async def _dashboard(options: PageOptions, context: ContainerContext, client: Client, rng: random.Random) -> None:
    options = dataclasses.replace(options, address=context.pod.ip, tls_folder=None)
    if not _listens(context):
        options = dataclasses.replace(options, port=None, http_port=None, api_port=None, keda_port=None)
    await PageReplica(options, client, context.clock, rng).run()


async def install_tessera(
    client: Client,
    *,
    without: Collection[str] = (),
    page: bool = False,
    claim_driver: str = "",
    claim_placement: str = CLAIM_PLACEMENTS[0],
) -> None:
    """``kubectl apply -k deploy/``, by server-side apply.

    Args:
        client: who installs.
        page: also the live page and the API for tenants, which need processes that listen.
        without: Deployments that are left out, since somebody else runs what they would.
        claim_driver: as ``tessera install --claim-driver``; empty for no claims.
        claim_placement: as ``tessera install --claim-placement``.
    """
    found = [*install_manifests(), *(page_manifests() if page else ())]
    if claim_driver:
        found = render(InstallChoices(claim_driver=claim_driver, claim_placement=claim_placement, dashboard=page))
    await apply_manifests(
        client,
        (
            manifest
            for manifest in found
            if manifest["kind"] != "Deployment" or manifest["metadata"]["name"] not in without
        ),
    )


async def apply_manifests(client: Client, manifests: Iterable[Mapping[str, Any]]) -> None:
    """``kubectl apply --server-side`` of objects, in their order."""
    for manifest in manifests:
        metadata = manifest["metadata"]
        await client.apply(resource_for(manifest), metadata["name"], manifest, metadata.get("namespace"))


class MissingDriver:
    """See :class:`tessera.agent.driver.hardware.DriverBackend`; there is no driver, and none comes.

    Args:
        node: the node's name, for messages.
    """

    def __init__(self, node: str) -> None:
        self._node = node

    def has_library(self) -> bool:
        """Returns False: there is no library."""
        return False

    def module(self) -> str:
        """Returns an empty text: no kernel module is loaded."""
        return ""

    def nvml(self, _home: DriverHome) -> AsyncNvml:
        """Refuses to open NVML.

        Raises:
            DriverNotLoaded: always.
        """
        raise DriverNotLoaded(f"node {self._node} of the lab was started without cards")

    def root(self, _home: DriverHome) -> Path | None:
        """Returns None: the driver has no files."""
        return None

    def needs_new_process(self, _error: NvmlError) -> bool:
        """Returns False: the process can wait."""
        return False

    async def watch(self, _changes: ChangeNotifier) -> None:
        """Reports no changes."""
        await asyncio.Event().wait()
