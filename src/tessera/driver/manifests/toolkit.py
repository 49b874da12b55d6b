"""NVIDIA's container toolkit on nodes whose driver Tessera installs: their container runtime learns of the cards.

The toolkit's container starts the moment the driver container says that its driver works: an init container of
Tessera's image waits for that marker by inotify. gpu-operator looks each 5 s and sleeps 5 s more, and waits for another
container's word, too; the agent's would not come while it is paused for an upgrade, which ends with the validation.
"""

from typing import Any

import msgspec

from tessera.api.driver.policy import DriverPolicy
from tessera.api.driver.status import DRIVER_CONTAINER_READY, DRIVER_SET_LABEL, TOOLKIT_APP
from tessera.driver.manifests.driver import image_of
from tessera.driver.manifests.host import HOST_ROOT, MARKERS, Mount
from tessera.driver.manifests.names import (
    DRIVER_ACCOUNT,
    RUNTIME_CLASS,
    TOOLKIT_CONTAINER,
    app_labels,
    secrets,
)
from tessera.driver.manifests.probes import toolkit_ready

Json = dict[str, Any]

_INSTALL = "/usr/local/nvidia"
_CONFIG, _DROP_IN, _SOCKETS = "/runtime/config-dir", "/runtime/config-dir.d", "/runtime/sock-dir"
_CREATE, _FROM_HOST = "DirectoryOrCreate", "HostToContainer"


class Runtime(msgspec.Struct, frozen=True, kw_only=True):
    """Where a container runtime has its settings (gpu-operator v26.7.0, ``controllers/object_controls.go``).

    Attributes:
        name: as the toolkit calls it.
        folder: of its settings.
        file: its settings.
        drop_in_folder: of files that are read besides.
        drop_in: the file that the toolkit writes there.
        socket: through which it is told to read them again; empty where it is restarted otherwise.
    """

    name: str
    folder: str
    file: str
    drop_in_folder: str
    drop_in: str
    socket: str = ""


CONTAINERD = Runtime(
    name="containerd",
    folder="/etc/containerd",
    file="config.toml",
    drop_in_folder="/etc/containerd/conf.d",
    drop_in="99-nvidia.toml",
    socket="/run/containerd/containerd.sock",
)
CRIO = Runtime(
    name="crio",
    folder="/etc/crio",
    file="config.toml",
    drop_in_folder="/etc/crio/crio.conf.d",
    drop_in="99-nvidia.conf",
)


def toolkit_daemonset(policy: DriverPolicy, image: str, runtime: Runtime) -> Json:
    """The DaemonSet.

    Args:
        policy: what it says of the toolkit.
        image: Tessera's own.
        runtime: the nodes' container runtime.
    """
    labels = app_labels(TOOLKIT_APP)
    mounts = _mounts(policy, runtime)
    return {
        "metadata": {"name": TOOLKIT_APP, "labels": labels},
        "spec": {
            "selector": {"matchLabels": labels},
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "10%"}},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "affinity": _managed_nodes(),
                    "tolerations": [{"operator": "Exists"}],
                    "priorityClassName": "system-node-critical",
                    "serviceAccountName": DRIVER_ACCOUNT,
                    "hostPID": True,
                    **secrets(*policy.toolkit.source.pull_secrets),
                    "initContainers": [_wait(image)],
                    "containers": [_toolkit(policy, runtime, mounts)],
                    "volumes": [each.volume() for each in (*mounts, MARKERS)],
                },
            },
        },
    }


def runtime_class() -> Json:
    """The RuntimeClass under which containers get cards; handler and name are NVIDIA's."""
    return {"metadata": {"name": RUNTIME_CLASS}, "handler": RUNTIME_CLASS}


def _managed_nodes() -> Json:
    """Nodes that Tessera gives a driver."""
    terms = [{"matchExpressions": [{"key": DRIVER_SET_LABEL, "operator": "Exists"}]}]
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


def _wait(image: str) -> Json:
    return {
        "name": "wait-for-driver",
        "image": image,
        "command": ["tessera", "wait-for", DRIVER_CONTAINER_READY],
        "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}],
        "securityContext": {"privileged": True, "runAsUser": 0},
        "volumeMounts": [MARKERS.mount()],
    }


def _toolkit(policy: DriverPolicy, runtime: Runtime, mounts: list[Mount]) -> Json:
    return {
        "name": TOOLKIT_CONTAINER,
        "image": image_of(policy.toolkit),
        "imagePullPolicy": policy.toolkit.source.pull_policy,
        "command": ["nvidia-toolkit"],
        "env": [{"name": name, "value": text} for name, text in _environment(policy, runtime).items()],
        "securityContext": {"privileged": True, "seLinuxOptions": {"level": "s0"}},
        "volumeMounts": [each.mount() for each in mounts],
        "readinessProbe": toolkit_ready(f"{_DROP_IN}/{runtime.drop_in} {_CONFIG}/{runtime.file}"),
    }


def _environment(policy: DriverPolicy, runtime: Runtime) -> dict[str, str]:
    install = policy.toolkit.install_dir or _INSTALL
    socket = {}
    if runtime.socket:
        path = f"{_SOCKETS}/{runtime.socket.rpartition('/')[2]}"
        socket = {"RUNTIME_SOCKET": path, "CONTAINERD_SOCKET": path, "CONTAINERD_RUNTIME_CLASS": RUNTIME_CLASS}
    return {
        "NVIDIA_VISIBLE_DEVICES": "void",
        "ROOT": install,
        "TOOLKIT_INSTALL_DIR": install,
        "TOOLKIT_PID_FILE": "/run/nvidia/toolkit/toolkit.pid",
        # The driver's files, and its device nodes, lie below the driver container's root.
        "NVIDIA_DRIVER_ROOT": policy.driver_root,
        "DRIVER_ROOT_CTR_PATH": "/driver-root",
        "NVIDIA_DEV_ROOT": policy.driver_root,
        "DEV_ROOT_CTR_PATH": "/driver-root",
        "RUNTIME": runtime.name,
        "RUNTIME_CONFIG": f"{_CONFIG}/{runtime.file}",
        ("CRIO_CONFIG" if runtime is CRIO else "CONTAINERD_CONFIG"): f"{_CONFIG}/{runtime.file}",
        "RUNTIME_DROP_IN_CONFIG": f"{_DROP_IN}/{runtime.drop_in}",
        "RUNTIME_DROP_IN_CONFIG_HOST_PATH": f"{runtime.drop_in_folder}/{runtime.drop_in}",
        **socket,
        "CRIO_CONFIG_MODE": "config",
        "CDI_ENABLED": "true",
        # Pods get the driver's libraries from NVIDIA's runtime, for the devices that the agent lists as mounts; what
        # an image or a ConfigMap says in a variable counts in privileged pods only. Mode cdi would look for a slice
        # that was made a moment ago in files that were written before (docs/decisions/container-environment.md).
        "NVIDIA_RUNTIME_SET_AS_DEFAULT": "true",
        "NVIDIA_CONTAINER_RUNTIME_MODE": "auto",
        "ACCEPT_NVIDIA_VISIBLE_DEVICES_AS_VOLUME_MOUNTS": "true",
        "ACCEPT_NVIDIA_VISIBLE_DEVICES_ENVVAR_WHEN_UNPRIVILEGED": "false",
        **policy.toolkit.env,
    }


def _mounts(policy: DriverPolicy, runtime: Runtime) -> list[Mount]:
    install = policy.toolkit.install_dir or _INSTALL
    mounts = [
        Mount(name="toolkit-root", path="/run/nvidia/toolkit", at="/run/nvidia/toolkit", type=_CREATE),
        Mount(name="toolkit-install-dir", path=install, at=install, type=_CREATE),
        Mount(
            name="driver-install-dir",
            path=policy.driver_root,
            at="/driver-root",
            type=_CREATE,
            propagation=_FROM_HOST,
        ),
        HOST_ROOT,
        Mount(name="cdi-root", path="/var/run/cdi", at="/var/run/cdi", type=_CREATE),
        Mount(name=f"{runtime.name}-config", path=runtime.folder, at=_CONFIG, type=_CREATE),
        Mount(name=f"{runtime.name}-drop-in-config", path=runtime.drop_in_folder, at=_DROP_IN, type=_CREATE),
    ]
    if runtime.socket:
        folder = runtime.socket.rpartition("/")[0]
        mounts.append(Mount(name=f"{runtime.name}-socket", path=folder, at=_SOCKETS))
    return mounts
