"""The process behind ``tessera lab up``: a cluster that listens for kubectl, in its folder, until a signal ends it.

So that several labs run side by side, each takes one block ``127.N`` of 65,536 addresses for as long as it runs; every
address of 127.0.0.0/8 is this machine's on Linux. Pods that run for real listen there. A socket on the block's first
address shows that the block is in use.

The API server's proxy gets pages of the pods that listen on this machine.

A lab's live page is ``tessera dashboard`` as a process of its own, which ends with the lab.
"""

import asyncio
import base64
import errno
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import uvloop
import yaml

from tessera.api.instaslice import INSTASLICES, Instaslice
from tessera.api.names import INSTASLICE_NAMESPACE
from tessera.api.nodes.offers import OFFERS_ANNOTATION
from tessera.cli.install.choices import SavedOptions, save
from tessera.clock import Clock, LoopClock, SystemClock, rfc3339
from tessera.doctor.manifests import images, install_manifests
from tessera.driver.images import ImageQuery
from tessera.kube.cluster_config import ClusterConfig
from tessera.kube.credentials import Credentials
from tessera.kube.http import HttpTransport
from tessera.kube.informer import Informer, InformerGroup
from tessera.kube.requests import Response, Transport
from tessera.kube.resources import MUTATING_WEBHOOKS, NODES, STORAGE_CLASSES, Node
from tessera_lab.activity.lab_cards import LabCards
from tessera_lab.apiserver.admission.plugins import DEFAULT_CLASS
from tessera_lab.apiserver.authz.certificates import CertificateAuthority
from tessera_lab.apiserver.interfaces import GetPage
from tessera_lab.apiserver.main.http_server import HttpServer
from tessera_lab.cloud.autoscaler.process import parse_groups, run_autoscaler
from tessera_lab.cluster.accepted_nodes import lab_nodes
from tessera_lab.cluster.cluster import ADMIN, ClusterOptions, SimulatedCluster
from tessera_lab.cluster.front_proxy import read_page
from tessera_lab.cluster.options import parse_system
from tessera_lab.daemon.lab_folder import LabState, RequestHandler, lock_folder, publish_state, serve_control_socket
from tessera_lab.daemon.scenario_control import ScenarioControl, card_handlers
from tessera_lab.drivers.driver_catalogue import SimulatedResolver
from tessera_lab.experiments.clusters import article_machine, article_registries
from tessera_lab.installation.image_processes import LabAccess, add_images
from tessera_lab.installation.install import TesseraCommands, build_entrypoint, install_tessera
from tessera_lab.installation.process_logs import container_logs
from tessera_lab.kubelet.images.catalogue import ImageCatalogue, SimulatedImage
from tessera_lab.kubelet.node.node import SHUTDOWN, SimulatedNode
from tessera_lab.kubelet.nvidia_smi.cards import format_gpu_list
from tessera_lab.kueue.manager import IMAGE as KUEUE_IMAGE
from tessera_lab.kueue.manager import install_kueue, manager_program
from tessera_lab.simulation.cost_model import CostModel
from tessera_lab.simulation.virtual_time import VirtualTimeLoop
from tessera_lab.workloads.storage import PROVISIONER

_URL = re.compile(r"http://\S+/")


@asynccontextmanager
async def serve_live_page(kubeconfig: Path) -> AsyncIterator[str]:
    """Serves the page inside the block, and gives its address.

    The process is started by the standard library and not by uvloop: its vfork runs none of gRPC's fork handlers, which
    complain while gRPC's threads run. A page that uvloop started ended once without a word.

    Raises:
        ConnectionError: the page did not start; the lab's log says why.
    """
    process = await asyncio.to_thread(_start, kubeconfig)
    try:
        assert process.stdout is not None
        url = _URL.search((await asyncio.to_thread(process.stdout.readline)).decode(errors="replace"))
        if url is None:
            raise ConnectionError("the live page did not start; the lines above say why")
        yield url[0]
    finally:
        process.terminate()
        await asyncio.to_thread(process.wait)


def _start(kubeconfig: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tessera", "dashboard", "--port", "0", "--kubeconfig", str(kubeconfig)]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)  # noqa: S603 - our own program


#: Seconds for a page.
_TIMEOUT = aiohttp.ClientTimeout(total=30.0)


@asynccontextmanager
async def pod_page_getter(network: str) -> AsyncIterator[GetPage]:
    """A function that gets pages of pods whose address begins with ``network``, such as ``127.9``."""
    async with aiohttp.ClientSession(timeout=_TIMEOUT) as session:

        async def get(address: str, port: int, path: str, headers: Mapping[str, str]) -> Response:
            if not address.startswith(f"{network}."):
                raise LookupError(address)
            url = f"http://{address}:{port}{path}"
            try:
                async with session.get(url, headers=headers, allow_redirects=False) as answer:
                    body = await read_page(answer)
                    kind = answer.headers.get("content-type", "application/octet-stream")
                    return Response(status=answer.status, headers={"content-type": kind}, body=body)
            except (aiohttp.ClientError, TimeoutError) as error:
                raise ConnectionError(str(error)) from error

        yield get


#: Port of that socket. Nothing else of a lab listens on a block's first address.
MARK_PORT = 47_806
#: Blocks that a lab may take; 127.0 and 127.1 are what other programs use.
BLOCKS = range(2, 256)


@contextmanager
def reserve_address_block() -> Iterator[str]:
    """Takes a free block and gives its first two bytes, ``127.N``.

    Raises:
        OSError: none is free, or this system has no such addresses.
    """
    for number in random.sample(BLOCKS, len(BLOCKS)):
        block = f"127.{number}"
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as mark:
            try:
                mark.bind((f"{block}.0.1", MARK_PORT))
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    continue
                raise
            yield block
            return
    raise OSError(errno.EADDRINUSE, f"all {len(BLOCKS)} blocks of 127.0.0.0/8 are taken by other labs")


#: How often kubelets renew their Leases, seconds, as real ones do.
LEASE_SECONDS = 10.0

#: Seconds for Tessera to start on all nodes; then the lab counts as failed.
START_TIMEOUT = 55.0

#: The default class of volumes, as kind, k3s and the clouds have one: claims without a class are served.
STORAGE = {
    "metadata": {"name": "standard", "annotations": {DEFAULT_CLASS: "true"}},
    "provisioner": PROVISIONER,
    "volumeBindingMode": "WaitForFirstConsumer",
}


class LabOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of ``tessera lab up``; see its help."""

    nodes: str
    nodes_from: tuple[Path, ...] = ()
    virtual_time: bool
    image_pull: float
    slice_latency: float
    publish_every: float | None
    boot_time: float
    mig_config: str
    drivers: bool
    system: str
    kernel: str
    kubernetes: str
    claim_driver: str | None
    claim_placement: str
    groups: tuple[str, ...]
    idle_time: float
    port: int
    dashboard: bool
    installed: bool
    kueue: bool = False
    images: tuple[str, ...] = ()


def serve_lab(folder: Path, options: LabOptions, commands: TesseraCommands) -> None:
    """Runs the lab until SIGTERM or SIGINT.

    Raises:
        LabError: the folder is another lab's.
        ValueError: the nodes are not valid.
        TimeoutError: Tessera did not start in time.
    """
    with lock_folder(folder), reserve_address_block() as network, container_logs():
        lab = LabProcess(folder, options, commands, network)
        with asyncio.Runner(loop_factory=lab.loop) as runner:
            runner.run(lab.run())


class LabProcess:
    """One lab in its folder."""

    def __init__(self, folder: Path, options: LabOptions, commands: TesseraCommands, network: str) -> None:
        self._folder = folder
        self._network = network
        self._lab_options = options
        self._nodes = lab_nodes(options.nodes, options.nodes_from)
        self._groups = parse_groups(options.groups)
        if options.drivers:
            self._groups = [
                msgspec.structs.replace(each, template=article_machine(each.template, CostModel()))
                for each in self._groups
            ]
        self._commands = commands
        self._cluster: SimulatedCluster | None = None
        self._is_usable = False
        self._access = LabAccess(folder)

    def loop(self) -> asyncio.AbstractEventLoop:
        """Makes the event loop: real time on uvloop, or virtual time that skips only simulated waits."""
        if self._lab_options.virtual_time:
            return VirtualTimeLoop(
                may_leap=lambda: bool(self._is_usable and self._cluster and self._cluster.pending_waits)
            )
        return uvloop.new_event_loop()

    async def run(self) -> None:
        """Runs until a signal."""
        clock = self._clock()
        cluster = self._cluster = SimulatedCluster(
            self._nodes, clock=clock, options=self._cluster_options(), entrypoint=build_entrypoint(self._commands)
        )
        if self._lab_options.kueue:
            self._name_kueue(cluster)
        cards = LabCards(cluster.nodes)
        scenarios = ScenarioControl(cards, cluster.client("lab-scenario"), cluster.hardware_clock)
        authority = CertificateAuthority(clock.now())
        front = HttpServer(cluster.server, authority, port=self._lab_options.port)
        await front.start()
        cluster.connect = lambda credentials: _transport(front.url, authority, credentials)
        self._access.open(cluster.token, front.url, authority.certificate)
        try:
            async with (
                pod_page_getter(self._network) as cluster.server.parts.get_page,
                cluster.running(),
                scenarios.running(),
                serve_control_socket(self._folder, self._control_handlers(cluster, cards, scenarios)),
            ):
                await self._wait_until_usable(cluster, clock)
                if self._lab_options.kueue:
                    await install_kueue(cluster.client("kubectl"), clock, cluster.reviewers, START_TIMEOUT)
                self._is_usable = True
                async with run_autoscaler(
                    cluster,
                    self._groups,
                    machine_seconds=self._lab_options.boot_time,
                    idle_seconds=self._lab_options.idle_time,
                ):
                    path = self._write_kubeconfig(front.url, authority)
                    async with serve_live_page(path) if self._lab_options.dashboard else nullcontext("") as page:
                        self._announce(front.url, path, page, clock)
                        await _wait_for_signal()
        finally:
            await front.close()
            if cluster.front_proxy is not None:
                await cluster.front_proxy.close()

    def _clock(self) -> Clock:
        return LoopClock(time.time()) if self._lab_options.virtual_time else SystemClock()

    def _cluster_options(self) -> ClusterOptions:
        lab, system = self._lab_options, parse_system(self._lab_options.system, self._lab_options.kernel)
        given = {"os_image": system.os_image, "kernel": system.kernel, "publish_every": lab.publish_every}
        machines = (article_registries() if lab.drivers else {}) | {
            name: value for name, value in given.items() if value
        }
        if lab.images or lab.kueue:
            machines.setdefault("catalogue", ImageCatalogue(latency=lab.image_pull))
        if lab.images:
            add_images(machines["catalogue"], lab.images, self._access)
        return ClusterOptions(
            folder=self._folder,
            # gRPC answers in threads of its own, for which virtual time would have to wait before each leap.
            plugin_sockets=not (lab.virtual_time and lab.installed and not lab.images),
            # A user who installs Tessera may run its agent as a process of its own, on the same cards.
            shared_cards=not lab.installed,
            pull_seconds=lab.image_pull,
            # Nodes already have Tessera's own image: a lab does not show the time of its pull.
            images=frozenset(images(install_manifests())),
            slice_seconds=lab.slice_latency,
            boot_seconds=lab.boot_time,
            mig_config=lab.mig_config,
            by_claims=bool(lab.claim_driver),
            network=self._network,
            seed=int.from_bytes(os.urandom(4)),
            leaps=lab.virtual_time,
            fair_queues=not lab.virtual_time,
            lease_seconds=LEASE_SECONDS,
            kubernetes=lab.kubernetes,
            **machines,
        )

    @staticmethod
    def _name_kueue(cluster: SimulatedCluster) -> None:
        """Adds the image of Kueue's manager to those of the registries."""
        assert cluster.options.catalogue is not None
        program = manager_program(cluster.client("kueue"), cluster.clock, cluster.reviewers, cluster.services)
        cluster.options.catalogue.name(KUEUE_IMAGE, SimulatedImage(program=program))

    async def _wait_until_usable(self, cluster: SimulatedCluster, clock: Clock) -> None:
        """Waits until nodes are registered; with Tessera also for the webhook and for all nodes with cards."""
        client = cluster.client("tessera-lab")
        await client.create(STORAGE_CLASSES.as_dicts(), STORAGE)
        rng = cluster.rng("serve")
        nodes = Informer(client, NODES, clock=clock, rng=rng)
        if not self._lab_options.installed:
            watched = InformerGroup(nodes)
            async with watched.running():
                await watched.wait_until(
                    lambda: len(nodes.cache) == len(self._nodes), START_TIMEOUT, "the nodes are registered"
                )
            return
        lab = self._lab_options
        await install_tessera(
            client,
            page=not lab.virtual_time,
            claim_driver=lab.claim_driver or "",
            claim_placement=lab.claim_placement,
        )
        words = ["--no-dashboard"] if lab.virtual_time else []
        if lab.claim_driver:
            words += [f"--claim-driver={lab.claim_driver}", f"--claim-placement={lab.claim_placement}"]
        await save(client, SavedOptions(words))
        slices = Informer(client, INSTASLICES, clock=clock, rng=rng, namespace=INSTASLICE_NAMESPACE)
        hooks = Informer(client, MUTATING_WEBHOOKS.as_dicts(), clock=clock, rng=rng)
        watched = InformerGroup(nodes, slices, hooks)
        async with watched.running():
            await watched.wait_until(
                lambda: len(nodes.cache) == len(self._nodes), START_TIMEOUT, "the nodes are registered"
            )
            await watched.wait_until(lambda: _are_webhooks_trusted(hooks), START_TIMEOUT, "the webhook is trusted")
            if self._lab_options.drivers:  # no card is served before an administrator requests drivers
                return
            await watched.wait_until(
                lambda: self._are_nodes_served(nodes, slices), START_TIMEOUT, "every node with cards is served"
            )

    def _are_nodes_served(self, nodes: Informer[Node], slices: Informer[Instaslice]) -> bool:
        """True if each node with cards serves them to on-demand slicing, or has published its offers."""
        return all(
            slices.cache.get(f"{INSTASLICE_NAMESPACE}/{spec.name}")
            or ((node := nodes.cache.get(spec.name)) is not None and OFFERS_ANNOTATION in node.metadata.annotations)
            for spec in self._nodes
            if spec.cards
        )

    def _control_handlers(
        self, cluster: SimulatedCluster, cards: LabCards, scenarios: ScenarioControl
    ) -> dict[str, RequestHandler]:
        answers: dict[str, RequestHandler] = {"smi": self._smi, "reboot": self._reboot}
        answers |= {**card_handlers(cards), **scenarios.handlers()}
        catalogue = cluster.options.catalogue
        if catalogue is not None:
            answers["resolve"] = lambda query: _resolve_image(SimulatedResolver(catalogue, cluster.clock), query)
        return answers

    def _smi(self, node: str) -> str:
        machine = self._node(node).machine
        return "No devices were found" if machine is None else format_gpu_list(machine)

    def _reboot(self, argument: str) -> str:
        name, _, kernel = argument.partition(" ")
        found = self._node(name)
        found.reboot(kernel)
        into = f" into kernel {kernel}" if kernel else ""
        return f"node {name} reboots{into}; it is back in about {SHUTDOWN + found.options.boot_seconds:g} s"

    def _node(self, name: str) -> SimulatedNode:
        assert self._cluster is not None
        found = self._cluster.nodes.get(name)
        if found is None:
            raise ValueError(f"no node {name!r}; there are {', '.join(self._cluster.nodes)}")
        return found

    def _write_kubeconfig(self, url: str, authority: CertificateAuthority) -> Path:
        path = self._folder / "kubeconfig"
        path.touch(mode=0o600)
        path.write_text(kubeconfig(url, authority))
        return path

    def _announce(self, url: str, path: Path, page: str, clock: Clock) -> None:
        publish_state(
            self._folder,
            LabState(
                pid=os.getpid(),
                server=url,
                kubeconfig=str(path),
                nodes=",".join(filter(None, (self._lab_options.nodes, *map(str, self._lab_options.nodes_from)))),
                virtual_time=self._lab_options.virtual_time,
                started=rfc3339(clock.now()),
                registries=self._lab_options.drivers,
                groups=self._lab_options.groups,
                kueue=self._lab_options.kueue,
                page=page,
            ),
        )


def _resolve_image(registries: SimulatedResolver, query: str) -> str:
    """Returns the answer of the lab's registries to an :class:`ImageQuery`; both are JSON."""
    return msgspec.json.encode(registries.answer(msgspec.json.decode(query, type=ImageQuery))).decode()


def _are_webhooks_trusted(hooks: Informer[dict[str, Any]]) -> bool:
    configurations = list(hooks.cache.values())
    return bool(configurations) and all(
        hook["clientConfig"].get("caBundle") for each in configurations for hook in each.get("webhooks", ())
    )


def _transport(url: str, authority: CertificateAuthority, credentials: Credentials) -> Transport:
    return HttpTransport(ClusterConfig(server=url, ca=authority.certificate, credentials=credentials))


def kubeconfig(url: str, authority: CertificateAuthority) -> str:
    """A kubeconfig for the lab's administrator, with a client certificate."""
    pair = authority.issue_client_certificate(ADMIN.name, ADMIN.groups[:1])

    def encode(content: bytes) -> str:
        return base64.b64encode(content).decode()

    cluster = {"server": url, "certificate-authority-data": encode(authority.certificate)}
    user = {"client-certificate-data": encode(pair.certificate), "client-key-data": encode(pair.key)}
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "tessera-lab", "cluster": cluster}],
            "users": [{"name": ADMIN.name, "user": user}],
            "contexts": [{"name": "tessera-lab", "context": {"cluster": "tessera-lab", "user": ADMIN.name}}],
            "current-context": "tessera-lab",
        },
        sort_keys=False,
    )


async def _wait_for_signal() -> None:
    """Returns when the process gets SIGTERM or SIGINT."""
    requested = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, requested.set)
    await requested.wait()
