"""Makes the nodes of a simulated cluster: machine, folders, labels and kubelet, as the cluster's options say.

Node feature discovery, as far as GPUs need it, labels a node's features (:func:`label_node`) some time after each boot,
since another kernel may run. The real worker labels when its pod runs, and again every 60 s; the lab has one delay for
both. Labels are named as by NFD's sources ``kernel``, ``system`` and ``pci``.
"""

import itertools
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from tessera.api.names import DEVICE_API_DRA, DEVICE_API_LABEL, MIG_CONFIG_LABEL
from tessera.clock import Clock
from tessera.driver.node_facts import parse_os_image
from tessera.kube.client import Client
from tessera.kube.errors import NotFound
from tessera.kube.resources import NODES
from tessera.mig.models import model_by_short_name
from tessera.nvml.simulated.machine_state import DRIVER_VERSION, parse_spec
from tessera.nvml.simulated.simulated_machine import SimulatedMachine
from tessera_lab.apiserver.interfaces import UserInfo
from tessera_lab.apiserver.kinds.versions import RELEASES
from tessera_lab.cluster.accepted_nodes import apply_cards
from tessera_lab.cluster.options import ClusterOptions, LabNodeSpec, cards_file, kernel_on, node_folders
from tessera_lab.kubelet.containers.launcher import NodeSoftware
from tessera_lab.kubelet.context import Entrypoint, GrpcPlugins, InProcessPlugins, KubeletOptions, NodeDirectories
from tessera_lab.kubelet.node.node import SimulatedNode

_PREFIX = "feature.node.kubernetes.io/"
#: The annotation in which discovery lists the labels that it wrote.
_LABELS_ANNOTATION = "nfd.node.kubernetes.io/feature-labels"
#: NVIDIA's cards by vendor, and by class (3D controller) and vendor.
_CARD_LABELS = ("pci-10de.present", "pci-0302_10de.present")


async def label_node(client: Client, node: SimulatedNode, seconds: float) -> None:
    """Labels a node that has just become Ready.

    Args:
        client: writes the labels.
        node: the node.
        seconds: delay until the worker labels the node.
    """
    await node.waits.sleep(seconds)
    labels = feature_labels(node.kernel, node.options.os_image, cards=node.machine is not None)
    written = {_LABELS_ANNOTATION: ",".join(sorted(name.removeprefix(_PREFIX) for name in labels))}
    try:
        await client.merge_patch(NODES, node.name, {"metadata": {"labels": labels, "annotations": written}})
    except NotFound:
        return  # the node was deleted meanwhile


def feature_labels(kernel: str, os_image: str, *, cards: bool) -> dict[str, Any]:
    """The labels of a node.

    Args:
        kernel: ``uname -r``.
        os_image: ``PRETTY_NAME`` of its os-release.
        cards: true if it has cards of NVIDIA.
    """
    found = {"kernel-version.full": kernel.replace("+", "_")}  # a label's value has no plus sign
    release = parse_os_image(os_image)
    if release is not None:
        major, _, minor = release.version.partition(".")
        found |= {
            "system-os_release.ID": release.id,
            "system-os_release.VERSION_ID": release.version,
            "system-os_release.VERSION_ID.major": major,
            "system-os_release.VERSION_ID.minor": minor,
            "system-os_release.OSTREE_VERSION": release.ostree,
        }
    if cards:
        found |= dict.fromkeys(_CARD_LABELS, "true")
    return {_PREFIX + name: value for name, value in found.items() if value}


#: Calls that change a card; ``slice_seconds`` slows them down. Making a slice needs two calls, so each takes half.
_SLICE_CALLS = ("create_gpu_instance", "create_compute_instance", "destroy_gpu_instance", "destroy_compute_instance")


class NodeClients(Protocol):
    """Makes clients of the API server, by component and user."""

    def __call__(self, component: str, user: UserInfo = ...) -> Client:
        """A client; an administrator's if no user is named."""
        ...


class NodeMaker:
    """Makes nodes, each with a number of its own.

    Args:
        options: the cluster's options.
        client: makes clients.
        clock: the cluster's time.
        rng: returns the random numbers of a part.
        entrypoint: runs the containers of Tessera's own image.
    """

    def __init__(
        self,
        options: ClusterOptions,
        *,
        client: NodeClients,
        clock: Clock,
        rng: Callable[[str], random.Random],
        entrypoint: Entrypoint | None,
    ) -> None:
        self._options = options
        self._client = client
        self._clock = clock
        self._rng = rng
        self._entrypoint = entrypoint
        self._numbers = itertools.count(1)

    def make_node(self, spec: LabNodeSpec, *, labels: Mapping[str, str] | None = None, **given: Any) -> SimulatedNode:
        """Makes a node that does not run yet; ``given`` goes to its :class:`KubeletOptions`."""
        options, number = self._options, next(self._numbers)
        groups = ("system:masters", "system:nodes", "system:authenticated")
        node = SimulatedNode(
            spec.name,
            self._client("kubelet", UserInfo(name=f"system:node:{spec.name}", groups=groups)),
            machine=self._machine(spec),
            plugins=self._plugins(spec.name),
            clock=self._clock,
            rng=self._rng(spec.name),
            software=NodeSoftware(entrypoint=self._entrypoint, catalogue=options.catalogue),
            options=KubeletOptions(
                address=f"192.0.2.{number % 250 + 1}",
                labels=self._labels(spec) | dict(labels or {}),
                pull_seconds=options.pull_seconds,
                images=options.images,
                publish_every=options.publish_every,
                boot_seconds=options.boot_seconds,
                pod_network=f"{options.network}.{number % 256}" if options.network else f"10.{number % 250}",
                serialise_pulls=options.serialise_pulls,
                kernel=spec.kernel or kernel_on(spec.architecture, options.kernel),
                os_image=spec.os_image or options.os_image,
                architecture=spec.architecture,
                release=RELEASES[options.kubernetes],
                network_seconds=(options.network_seconds if spec.network_seconds is None else spec.network_seconds),
                lease_seconds=options.lease_seconds,
                **given,
            ),
        )
        if options.nfd_seconds is not None:
            node.set_boot_task(self._discovery(options.nfd_seconds))
        return node

    def _labels(self, spec: LabNodeSpec) -> dict[str, str]:
        if not spec.cards:
            return {}
        has_mig = any(model_by_short_name(each).mig_capable for each in parse_spec(spec.spec))
        layout = {MIG_CONFIG_LABEL: self._options.mig_config} if self._options.mig_config and has_mig else {}
        if self._options.by_claims and has_mig:
            layout[DEVICE_API_LABEL] = DEVICE_API_DRA
        # With feature discovery, nobody knows before it that the node has cards.
        return layout if self._options.nfd_seconds is not None else layout | {"nvidia.com/gpu.present": "true"}

    def _machine(self, spec: LabNodeSpec) -> SimulatedMachine | None:
        if not spec.cards:
            return None
        latencies = dict.fromkeys(_SLICE_CALLS, self._options.slice_seconds / 2)
        state = None
        if self._options.shared_cards and self._options.folder is not None:
            state = cards_file(self._options.folder, spec.name)
            state.parent.mkdir(parents=True, exist_ok=True)
        driver = None if self._options.drivers else spec.driver or DRIVER_VERSION
        machine = SimulatedMachine(
            spec.spec, seed=spec.name, latencies=latencies, state=state, driver=driver, now=self._clock.monotonic
        )
        apply_cards(machine, spec.accepted)
        machine.set_mps_host(False)
        return machine

    def _plugins(self, name: str) -> InProcessPlugins | GrpcPlugins:
        if self._options.folder is not None:
            directories = NodeDirectories.under(self._options.folder / "n" / name)
            if self._options.plugin_sockets:
                return GrpcPlugins(directories=directories)
            return InProcessPlugins.in_folders(directories)
        if self._options.cdi is None:
            return InProcessPlugins()
        folder, validations, _ = node_folders(self._options, name)
        for each in (folder, validations):
            each.mkdir(parents=True, exist_ok=True)
        return InProcessPlugins(cdi=folder, validations=validations)

    def _discovery(self, seconds: float) -> Callable[[SimulatedNode], Awaitable[None]]:
        client = self._client("nfd-master")
        return lambda node: label_node(client, node, seconds)
