"""NVIDIA's container toolkit on nodes whose driver Tessera installs; it gives the container runtime access to the GPUs.

The toolkit's container starts as soon as the driver container's marker says that the driver works: an init container of
Tessera's image waits for that marker by inotify. gpu-operator polls every 5 s, sleeps 5 s more, and also waits for the
word of another container. Here that would be the agent, which is paused during an upgrade until validation is done.
"""

from typing import Any

from tessera.api.driver.driver_policy import DriverPolicy
from tessera.api.driver.node_status import DRIVER_CONTAINER_READY, DRIVER_SET_LABEL, TOOLKIT_APP
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
from tessera.driver.manifests.runtimes import Runtime, nri_environment, nri_mount

Json = dict[str, Any]

_INSTALL = "/usr/local/nvidia"
_CREATE, _FROM_HOST = "DirectoryOrCreate", "HostToContainer"
#: The toolkit reads the first of these that is set; Tessera's value goes into the one that the policy sets.
_SET_AS_DEFAULT = ("NVIDIA_RUNTIME_SET_AS_DEFAULT", "CONTAINERD_SET_AS_DEFAULT", "DOCKER_SET_AS_DEFAULT")


def toolkit_daemonset(policy: DriverPolicy, image: str, runtime: Runtime) -> Json:
    """The DaemonSet.

    Args:
        policy: its settings for the toolkit.
        image: Tessera's image.
        runtime: the nodes' container runtime.
    """
    labels = app_labels(TOOLKIT_APP)
    runtime = runtime.placed(policy.toolkit.env)
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
    """The RuntimeClass under which containers get GPUs; handler and name are NVIDIA's."""
    return {"metadata": {"name": RUNTIME_CLASS}, "handler": RUNTIME_CLASS}


def _managed_nodes() -> Json:
    """Node selector: nodes to which Tessera gives a driver."""
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
        "readinessProbe": toolkit_ready([] if policy.nri_plugin else runtime.files()),
    }


def _environment(policy: DriverPolicy, runtime: Runtime) -> dict[str, str]:
    install, written = policy.toolkit.install_dir or _INSTALL, policy.toolkit.env
    default = {} if any(name in written for name in _SET_AS_DEFAULT) else {_SET_AS_DEFAULT[0]: "true"}
    return {
        "NVIDIA_VISIBLE_DEVICES": "void",
        "ROOT": install,
        "TOOLKIT_INSTALL_DIR": install,
        "TOOLKIT_PID_FILE": "/run/nvidia/toolkit/toolkit.pid",
        # The driver's files and its device nodes are below the driver container's root.
        "NVIDIA_DRIVER_ROOT": policy.driver_root,
        "DRIVER_ROOT_CTR_PATH": "/driver-root",
        "NVIDIA_DEV_ROOT": policy.driver_root,
        "DEV_ROOT_CTR_PATH": "/driver-root",
        "CRIO_CONFIG_MODE": "config",
        "CDI_ENABLED": "true",
        # NVIDIA's runtime gives pods the driver's libraries for the devices that the agent lists as mounts. Variables
        # of an image or ConfigMap count in privileged pods only. Mode cdi would look for a new slice in files that were
        # written before the slice was made (docs/decisions/container-environment.md).
        **default,
        "NVIDIA_CONTAINER_RUNTIME_MODE": "auto",
        "ACCEPT_NVIDIA_VISIBLE_DEVICES_AS_VOLUME_MOUNTS": "true",
        "ACCEPT_NVIDIA_VISIBLE_DEVICES_ENVVAR_WHEN_UNPRIVILEGED": "false",
        **written,
        # These variables name files inside the container; in toolkit.env they name files on the host.
        **(nri_environment(runtime, written) if policy.nri_plugin else runtime.environment(written)),
    }


def _mounts(policy: DriverPolicy, runtime: Runtime) -> list[Mount]:
    install = policy.toolkit.install_dir or _INSTALL
    return [
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
        *([nri_mount(policy.toolkit.env)] if policy.nri_plugin else runtime.mounts()),
    ]
