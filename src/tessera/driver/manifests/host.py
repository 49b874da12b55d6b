"""The host paths that a driver pod mounts, and their places in its containers.

Source: gpu-operator v26.7.0, ``assets/state-driver/0500_daemonset.yaml``.
"""

import msgspec

from tessera.driver.manifests.names import Json
from tessera.gpu_operator.driver_policy import DriverPolicy


class HostMount(msgspec.Struct, frozen=True, kw_only=True):
    """A path of the host in a container.

    Attributes:
        name: name of the volume.
        path: path on the host.
        at: path in the container.
        type: the type that kubelet requires of the path; empty for no check.
        propagation: mount propagation between host and container; empty for none.
        read_only: the container does not write there.
    """

    name: str
    path: str
    at: str
    type: str = ""
    propagation: str = ""
    read_only: bool = False

    def volume(self) -> Json:
        """The pod's volume."""
        return {"name": self.name, "hostPath": {"path": self.path, **({"type": self.type} if self.type else {})}}

    def mount(self) -> Json:
        """The container's volume mount."""
        made: Json = {"name": self.name, "mountPath": self.at}
        if self.propagation:
            made["mountPropagation"] = self.propagation
        if self.read_only:
            made["readOnly"] = True
        return made


_CREATE, _BOTH, _FROM_HOST = "DirectoryOrCreate", "Bidirectional", "HostToContainer"

RUN_NVIDIA = HostMount(name="run-nvidia", path="/run/nvidia", at="/run/nvidia", type=_CREATE, propagation=_BOTH)
HOST_ROOT = HostMount(name="host-root", path="/", at="/host", propagation=_FROM_HOST, read_only=True)
HOST_SYS = HostMount(name="host-sys", path="/sys", at="/sys", type="Directory")
OS_RELEASE = HostMount(name="host-os-release", path="/etc/os-release", at="/host-etc/os-release", read_only=True)
VAR_LOG = HostMount(name="var-log", path="/var/log", at="/var/log")
DEV_LOG = HostMount(name="dev-log", path="/dev/log", at="/dev/log")
FIRMWARE_PATH = HostMount(
    name="firmware-search-path",
    path="/sys/module/firmware_class/parameters/path",
    at="/sys/module/firmware_class/parameters/path",
)
MELLANOX = HostMount(
    name="run-mellanox-drivers",
    path="/run/mellanox/drivers",
    at="/run/mellanox/drivers",
    type=_CREATE,
    propagation=_FROM_HOST,
)
MARKERS = HostMount(
    name="run-nvidia-validations", path="/run/nvidia/validations", at="/run/nvidia/validations", type=_CREATE
)


def _mofed_sources(policy: DriverPolicy) -> HostMount:
    path = "/usr/src" if policy.rdma_host_mofed else "/run/mellanox/drivers/usr/src"
    at = "/run/mellanox/drivers/usr/src"
    return HostMount(name="mlnx-ofed-usr-src", path=path, at=at, type=_CREATE, propagation=_FROM_HOST)


def _firmware(policy: DriverPolicy) -> HostMount:
    return HostMount(name="nv-firmware", path=f"{policy.driver_root}/lib/firmware", at="/lib/firmware", type=_CREATE)


def manager_mounts() -> list[HostMount]:
    """Mounts of the driver manager."""
    return [RUN_NVIDIA, HOST_ROOT, HOST_SYS, MELLANOX]


def driver_mounts(policy: DriverPolicy) -> list[HostMount]:
    """Mounts of the driver container."""
    folders = [
        HostMount(name=f"run-{name}", path=f"/run/{name}", at=f"/run/{name}", type=_CREATE)
        for name in ("nvidia-fabricmanager", "nvidia-topologyd")
    ]
    devices = HostMount(
        name="host-sys-devices-system", path="/sys/devices/system", at="/sys/devices/system", type="Directory"
    )
    own_root = [] if policy.driver_root.startswith("/run/nvidia/") else [_own_root(policy)]
    return [
        RUN_NVIDIA,
        *own_root,
        *folders,
        VAR_LOG,
        DEV_LOG,
        OS_RELEASE,
        _mofed_sources(policy),
        MELLANOX,
        FIRMWARE_PATH,
        devices,
        _firmware(policy),
    ]


def _own_root(policy: DriverPolicy) -> HostMount:
    """The folder of the host that the container sees as /run/nvidia/driver, where NVIDIA's container puts its files."""
    return HostMount(
        name="driver-install-dir", path=policy.driver_root, at="/run/nvidia/driver", type=_CREATE, propagation=_BOTH
    )


def build_mounts(policy: DriverPolicy) -> list[HostMount]:
    """Mounts of the Driver Toolkit's container, which compiles on RHCOS."""
    return [VAR_LOG, _mofed_sources(policy), OS_RELEASE, FIRMWARE_PATH, _firmware(policy)]


def peermem_mounts() -> list[HostMount]:
    """Mounts of the container that loads nvidia-peermem."""
    return [RUN_NVIDIA, VAR_LOG, DEV_LOG, MELLANOX]


def volumes(*groups: list[HostMount]) -> list[Json]:
    """The pod's volumes for the mounts of all its containers, without duplicates."""
    named = {mount.name: mount.volume() for group in groups for mount in group}
    return list(named.values())
