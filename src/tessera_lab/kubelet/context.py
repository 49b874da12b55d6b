"""Options of a simulated node, and the context of a container that runs for real.

Tessera's own processes are not simulated: the injected :data:`Entrypoint` runs a container whose command is ``tessera
agent|controller|webhook`` with a :class:`ContainerContext`, as a container runtime would run its image.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tessera.agent.base.host import ProcessTable
from tessera.clock import Clock
from tessera.kubelet.sockets import CLAIM_PLUGIN_DIR, REGISTRY_DIR
from tessera.nvml.simulated.simulated_machine import SimulatedMachine
from tessera_lab.apiserver.kinds.versions import DEFAULT, RELEASES
from tessera_lab.kubelet.device_plugins.inprocess import InProcessKubelet


@dataclass(frozen=True)
class NodeDirectories:
    """A node's folders, which its processes share.

    Attributes:
        plugins: kubelet's device-plugin folder, ``/var/lib/kubelet/device-plugins`` on a real node.
        pod_resources: the folder of the pod-resources socket.
        cdi: folder of CDI files, ``/var/run/cdi`` on a real node.
        state: folder for the node's agent.
        validations: folder of the driver stack's marker files, ``/run/nvidia/validations`` on a real node.
        registry: folder in which kubelet finds drivers of ResourceClaims, ``/var/lib/kubelet/plugins_registry``.
        claim_plugins: folder of these drivers, ``/var/lib/kubelet/plugins``.
        root: kubelet's folder, ``/var/lib/kubelet``.
    """

    plugins: Path
    pod_resources: Path
    cdi: Path
    state: Path
    validations: Path
    registry: Path
    claim_plugins: Path
    root: Path

    @classmethod
    def under(cls, root: Path) -> "NodeDirectories":
        """Makes the folders of one node below ``root``. Keep ``root`` short: sockets' paths are limited."""
        folders = [root / name for name in ("dp", "pr", "cdi", "state", "validations", "r", "p", "")]
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
        # An agent in a process of its own, with ``root`` as its ``--kubelet-root``, knows them by kubelet's names.
        for name, target in ((REGISTRY_DIR.name, "r"), (CLAIM_PLUGIN_DIR.name, "p")):
            if not (root / name).is_symlink():
                (root / name).symlink_to(target)
        return cls(*folders)


@dataclass(frozen=True, kw_only=True)
class InProcessPlugins:
    """Device plugins connect in this process.

    Attributes:
        bus: connects plugins and kubelet.
        cdi: the CDI folder, None for a node without one.
        validations: the folder of the driver stack's marker files, None for a node without one.
        directories: all folders of a node whose pods listen on their addresses; None if its pods do not listen.
    """

    bus: InProcessKubelet = field(default_factory=InProcessKubelet)
    cdi: Path | None = None
    validations: Path | None = None
    directories: NodeDirectories | None = None

    @classmethod
    def in_folders(cls, directories: NodeDirectories) -> "InProcessPlugins":
        """Makes the plugins of a node whose pods listen, with its files in these folders."""
        return cls(cdi=directories.cdi, validations=directories.validations, directories=directories)


@dataclass(frozen=True, kw_only=True)
class GrpcPlugins:
    """Device plugins connect over the unix sockets in these directories, as on a real node."""

    directories: NodeDirectories


@dataclass(frozen=True, kw_only=True)
class KubeletOptions:
    """Options of a simulated node; times in seconds.

    Attributes:
        address: the node's internal IP (kubelet's ``--node-ip``).
        labels: added to the Node object's own at registration.
        taints: set at registration.
        cpu: CPU capacity as a quantity; all of it is allocatable.
        memory: memory capacity as a quantity.
        disk: capacity for ephemeral storage as a quantity.
        max_pods: kubelet's ``--max-pods``.
        pull_seconds: duration of the pull of an image that the node does not have yet.
        images: images that the node has from the start.
        serialise_pulls: images are pulled one after the other, where they have sizes (kubelet's serializeImagePulls).
        kernel: ``uname -r`` of the node.
        os_image: ``PRETTY_NAME`` of its os-release.
        architecture: CPU architecture as Go and registries name it.
        release: kubelet's version.
        provider_id: ``spec.providerID``; empty for none.
        annotations: of the Node object, set at registration.
        network_seconds: from kubelet's start until the node has a network and is Ready; pods that do not use the
            host's network start then.
        publish_every: period for publishing capacity (10 s on a real node); None: at once after a change.
        lease_seconds: Lease renewal period (10 s on a real node); None for no Lease.
        gpu_memory: bytes that a container's simulated process uses on each of its MIG devices.
        boot_seconds: from the end of the old kernel until kubelet runs again, in a reboot.
        pod_network: first two or three bytes of pod addresses; three leave room for 253 pods.
    """

    address: str = "192.0.2.1"
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Mapping[str, Any], ...] = ()
    cpu: str = "64"
    memory: str = "256Gi"
    disk: str = "1Ti"
    max_pods: int = 250
    pull_seconds: float = 0.0
    images: frozenset[str] = frozenset()
    serialise_pulls: bool = True
    kernel: str = "6.8.0-simulated"
    os_image: str = "Tessera lab (simulated)"
    architecture: str = "amd64"
    release: str = RELEASES[DEFAULT]
    provider_id: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)
    network_seconds: float = 0.0
    publish_every: float | None = None
    lease_seconds: float | None = None
    gpu_memory: int = 1 << 30
    boot_seconds: float = 30.0
    pod_network: str = "10.244"


@dataclass(frozen=True, kw_only=True)
class PodIdentity:
    """The pod of a container.

    Attributes:
        namespace: its namespace.
        name: its name.
        uid: its UID.
        ip: its address.
        service_account: service account, in ``namespace``, with which its containers call the API server.
    """

    namespace: str
    name: str
    uid: str = ""
    ip: str = ""
    service_account: str = "default"


@dataclass(frozen=True, kw_only=True)
class ContainerHost:
    """The node of a container, as the container reaches it.

    Attributes:
        name: the node's name.
        kernel: ``uname -r`` of the kernel that runs when the container starts.
        architecture: the node's CPU architecture, as registries name it.
        machine: the node's simulated cards; None for a node without.
        plugins: how device plugins connect to this node.
        markers: the node's ``/run/nvidia/validations``; None if the lab keeps no files.
        reboot: requests a reboot, like ``systemctl reboot``; the container ends soon after.
        processes: the node's processes as an agent on it sees them; None for a node without cards.
    """

    name: str
    kernel: str
    architecture: str
    machine: SimulatedMachine | None
    plugins: InProcessPlugins | GrpcPlugins
    markers: Path | None
    reboot: Callable[[], None]
    processes: ProcessTable | None = None


@dataclass(frozen=True, kw_only=True)
class ContainerContext:
    """A container that runs for real.

    Attributes:
        argv: command and arguments with ``$(VAR)`` expanded.
        env: its environment, downward API resolved.
        pod: its pod.
        container: its name in the pod.
        host: its node.
        clock: the node's clock.
        log: adds a line to the container's log.
        ready: sets the container ready, if it is not so from its start (``Launcher.reports_readiness``).
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    pod: PodIdentity
    container: str
    host: ContainerHost
    clock: Clock
    log: Callable[[str], None]
    ready: Callable[[], None] = lambda: None


#: Runs a container for real and returns its exit code; kubelet cancels it when the container must stop.
Entrypoint = Callable[[ContainerContext], Awaitable[int]]
