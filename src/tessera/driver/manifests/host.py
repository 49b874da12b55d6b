"""What the containers of driver pods have of the host: paths, probes on its files, and the pod that validates it.

The paths' source: gpu-operator v26.7.0, ``assets/state-driver/0500_daemonset.yaml``.

Kubelet runs the probes every second. NVIDIA's operator probes first after 60 s and then every 10 s, since its probe
runs ``nvidia-smi`` each time. Ours looks for a file first. That costs nothing while the driver is built or loaded, so
the probe starts at once. The validation pod runs once on a node, after its driver is ready.
"""

import shlex
from collections.abc import Mapping, Sequence

import msgspec

from tessera.api.nodes.node_marks import DRIVER_CONTAINER_READY, DRIVER_SET_LABEL, MARKER_FOLDER, VALIDATION_APP
from tessera.driver.driver_sets import DRIVER_ACCOUNT, RUNTIME_CLASS, Json, app_labels, validation_name
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


#: Seconds that a driver may take to start: gpu-operator's 60 s + 120 x 10 s, and more for a slow build.
_STARTUP_TIMEOUT = 1800
#: Timeout of one probe, seconds: ``nvidia-smi`` is slow on many GPUs without persistence mode.
_TIMEOUT = 60

#: Files that NVIDIA's driver containers write if they also run daemons.
_DAEMONS = ".driver-daemons-status"

#: Where NVIDIA's containers mount their root for the node, as their last step (gpu-driver-container,
#: ``_mount_rootfs``).
_ROOT = "/run/nvidia/driver"
#: A file in the container's own root that identifies one run of the container.
_RUN = "/.tessera-run"

#: An earlier run of the container may have left modules loaded and files mounted, which this run is about to replace.
#: A run is complete only once its own root is mounted. The script removes a marker that an earlier run left.
_STARTED = f"""\
mkdir -p {MARKER_FOLDER} && cd {MARKER_FOLDER} || exit 1
wrong() {{ rm -f {DRIVER_CONTAINER_READY}; echo "$1"; exit 1; }}
[ -f /sys/module/nvidia/refcnt ] || wrong "kernel module nvidia is not loaded"
if [ -f {_DAEMONS} ] && [ "$(cat {_DAEMONS})" != Ready ]; then
  wrong "daemons of the driver are not ready: $(cat {_DAEMONS})"
fi
[ -s {_RUN} ] || cat /proc/sys/kernel/random/uuid > {_RUN}
[ "$(cat {_RUN})" = "$(cat {_ROOT}{_RUN} 2>/dev/null)" ] || wrong "the driver's files are not at {_ROOT} yet"
nvidia-smi >/dev/null || wrong "nvidia-smi failed"
{{
  echo "GDRCOPY_ENABLED: ${{GDRCOPY_ENABLED:-false}}"
  echo "GDS_ENABLED: ${{GDS_ENABLED:-false}}"
  echo "GPU_DIRECT_RDMA_ENABLED: ${{GPU_DIRECT_RDMA_ENABLED:-false}}"
}} > {DRIVER_CONTAINER_READY}.tmp && mv {DRIVER_CONTAINER_READY}.tmp {DRIVER_CONTAINER_READY}
"""


def driver_startup(written: Mapping[str, int]) -> Json:
    """The driver container's startup probe; it also writes the marker that other containers wait for.

    Args:
        written: fields of the policy's probe. Its total time and its timeout apply. Its period and delay do not: a
            later probe gains nothing.
    """
    failure_threshold = _STARTUP_TIMEOUT
    if "failureThreshold" in written or "periodSeconds" in written:
        period, failures = written.get("periodSeconds", 10), written.get("failureThreshold", 120)
        failure_threshold = max(60, written.get("initialDelaySeconds", 0) + period * failures)
    return {
        "exec": {"command": ["sh", "-c", _STARTED]},
        "initialDelaySeconds": 0,
        "periodSeconds": 1,
        "timeoutSeconds": written.get("timeoutSeconds", _TIMEOUT),
        "failureThreshold": failure_threshold,
        "successThreshold": 1,
    }


def driver_stop() -> Json:
    """The preStop hook of the driver container: removes its marker, so that nothing starts on a driver that ends."""
    command = f"rm -f {MARKER_FOLDER}/{DRIVER_CONTAINER_READY} {MARKER_FOLDER}/{_DAEMONS}"
    return {"preStop": {"exec": {"command": ["sh", "-c", command]}}}


def toolkit_ready(files: Sequence[str]) -> Json:
    """Readiness probe: the toolkit runs, and the container runtime's configuration names it.

    Args:
        files: configuration files to look into; empty if the toolkit configures nothing.
    """
    known = f" && grep -qs nvidia {shlex.join(files)}" if files else ""
    command = f'[ -s "$TOOLKIT_PID_FILE" ]{known}'
    return {
        "exec": {"command": ["sh", "-c", command]},
        "initialDelaySeconds": 0,
        "periodSeconds": 1,
        "timeoutSeconds": 5,
        "failureThreshold": 3,
        "successThreshold": 1,
    }


_CONTAINER = "validate"


def validation_pod(image: str, *, node: str, node_uid: str, driver_set: str, nri_plugin: bool = False) -> Json:
    """The pod that runs a program on the node's GPUs through its container runtime, and then writes the marker files.

    The pod requests no GPU as a resource: the node advertises none before the pod has succeeded.

    Args:
        image: Tessera's image.
        node: name of the node.
        node_uid: UID of that Node object.
        driver_set: the driver set that the pod validates.
        nri_plugin: the node's toolkit is a plugin of its container runtime; then the toolkit has no RuntimeClass.
    """
    through: Json = {} if nri_plugin else {"runtimeClassName": RUNTIME_CLASS}
    asked = {"annotations": {f"nvidia.cdi.k8s.io/container.{_CONTAINER}": "management.nvidia.com/gpu=all"}}
    return {
        "metadata": {
            "name": validation_name(node_uid),
            "labels": {**app_labels(VALIDATION_APP), DRIVER_SET_LABEL: driver_set},
            **(asked if nri_plugin else {}),
            # The pod is deleted with its node, also in clusters that do not collect pods of deleted nodes.
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": node, "uid": node_uid}],
        },
        "spec": {
            "nodeName": node,
            **through,
            "restartPolicy": "OnFailure",
            "tolerations": [{"operator": "Exists"}],
            "priorityClassName": "system-node-critical",
            "serviceAccountName": DRIVER_ACCOUNT,
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 1,
            "containers": [
                {
                    "name": _CONTAINER,
                    "image": image,
                    "command": ["tessera", "validate"],
                    "env": [
                        {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"},
                        {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "compute,utility"},
                    ],
                    # The container writes markers into a folder of the host that belongs to root.
                    "securityContext": {"privileged": True, "runAsUser": 0, "seLinuxOptions": {"level": "s0"}},
                    "volumeMounts": [MARKERS.mount()],
                }
            ],
            "volumes": [MARKERS.volume()],
        },
    }
