"""NVIDIA's container toolkit on nodes whose driver Tessera installs; it gives the container runtime access to the GPUs.

The toolkit's container starts as soon as the driver container's marker says that the driver works: an init container of
Tessera's image waits for that marker by inotify. gpu-operator polls every 5 s, sleeps 5 s more, and also waits for the
word of another container. Here that would be the agent, which is paused during an upgrade until validation is done.

An administrator names settings files of the host's container runtime in ``toolkit.env``, since k3s, RKE2 and microk8s
keep them in other places. The toolkit's container reads the same variables as paths inside itself. So each file's
folder is mounted at a fixed path, and the variables name the file there. Source: gpu-operator v26.7.0,
``transformForRuntime``.
"""

from collections.abc import Iterator, Mapping

import msgspec

from tessera.api.nodes.node_marks import DRIVER_CONTAINER_READY, DRIVER_SET_LABEL, TOOLKIT_APP
from tessera.driver.driver_sets import (
    DRIVER_ACCOUNT,
    NAMESPACE,
    RUNTIME_CLASS,
    TOOLKIT_CONTAINER,
    Json,
    app_labels,
    secrets,
)
from tessera.driver.manifests.driver import image_of
from tessera.driver.manifests.host import HOST_ROOT, MARKERS, HostMount, toolkit_ready
from tessera.gpu_operator.driver_policy import DriverPolicy

_CONFIG, _DROP_IN, _SOCKETS, _NRI = (
    "/runtime/config-dir",
    "/runtime/config-dir.d",
    "/runtime/sock-dir",
    "/runtime/nri-sock-dir",
)
_CREATE = "DirectoryOrCreate"
_NRI_SOCKET = "/var/run/nri/nri.sock"
#: Each variable names the settings that the toolkit reads first: ``command,file=/etc/containerd/config.toml``.
_SOURCES = ("RUNTIME_CONFIG_SOURCES", "RUNTIME_CONFIG_SOURCE")


class Runtime(msgspec.Struct, frozen=True, kw_only=True):
    """A container runtime and its files on the host.

    Attributes:
        name: the toolkit's name for the runtime.
        config: its settings file.
        drop_in: the settings file that the toolkit adds; empty if the runtime reads only one file.
        socket: the socket over which the toolkit makes it reload its settings; empty if the toolkit restarts it
            instead.
    """

    name: str
    config: str
    drop_in: str = ""
    socket: str = ""

    def with_paths(self, env: Mapping[str, str]) -> "Runtime":
        """The same runtime with file paths from ``toolkit.env``; its own variable wins over a general one."""
        own = self.name.upper()
        return msgspec.structs.replace(
            self,
            config=env.get(f"{own}_CONFIG") or env.get("RUNTIME_CONFIG") or self.config,
            drop_in=self.drop_in and (env.get("RUNTIME_DROP_IN_CONFIG") or self.drop_in),
            socket=self.socket and (env.get(f"{own}_SOCKET") or env.get("RUNTIME_SOCKET") or self.socket),
        )

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """Variables of the toolkit's container; they replace those of ``toolkit.env``."""
        own = self.name.upper()
        found = {"RUNTIME": self.name, **dict.fromkeys(("RUNTIME_CONFIG", f"{own}_CONFIG"), _in(_CONFIG, self.config))}
        if self.drop_in:
            found["RUNTIME_DROP_IN_CONFIG"] = _in(_DROP_IN, self.drop_in)
            found["RUNTIME_DROP_IN_CONFIG_HOST_PATH"] = self.drop_in
        if self.socket:
            found |= dict.fromkeys(("RUNTIME_SOCKET", f"{own}_SOCKET"), _in(_SOCKETS, self.socket))
        if self.name == CONTAINERD.name:
            found["CONTAINERD_RUNTIME_CLASS"] = RUNTIME_CLASS
        return found | {name: ",".join(map(_below_host, env[name].split(","))) for name in _SOURCES if env.get(name)}

    def mounts(self) -> list[HostMount]:
        """Mounts of the toolkit's container."""
        return list(self._mounts())

    def _mounts(self) -> Iterator[HostMount]:
        yield HostMount(name=f"{self.name}-config", path=_folder(self.config), at=_CONFIG, type=_CREATE)
        if self.drop_in:
            yield HostMount(name=f"{self.name}-drop-in-config", path=_folder(self.drop_in), at=_DROP_IN, type=_CREATE)
        if self.socket:
            yield HostMount(name=f"{self.name}-socket", path=_folder(self.socket), at=_SOCKETS)

    def files(self) -> list[str]:
        """Paths of its settings files inside the toolkit's container."""
        return [*([_in(_DROP_IN, self.drop_in)] if self.drop_in else ()), _in(_CONFIG, self.config)]


CONTAINERD = Runtime(
    name="containerd",
    config="/etc/containerd/config.toml",
    drop_in="/etc/containerd/conf.d/99-nvidia.toml",
    socket="/run/containerd/containerd.sock",
)
CRIO = Runtime(name="crio", config="/etc/crio/config.toml", drop_in="/etc/crio/crio.conf.d/99-nvidia.conf")
DOCKER = Runtime(name="docker", config="/etc/docker/daemon.json", socket="/var/run/docker.sock")


def nri_environment(runtime: Runtime, env: Mapping[str, str]) -> dict[str, str]:
    """Variables for a toolkit that is a plugin of the runtime (NRI); it changes no settings and restarts nothing."""
    socket = _in(_NRI, env.get("NRI_SOCKET") or _NRI_SOCKET)
    # Only pods of this namespace may ask the plugin for devices.
    by_pods = {"NRI_NAMESPACE": NAMESPACE}
    return {"RUNTIME": runtime.name, "ENABLE_NRI_PLUGIN": "true", "NRI_SOCKET": socket, **by_pods}


def nri_mount(env: Mapping[str, str]) -> HostMount:
    """The only mount of an NRI toolkit: a read-only host (Talos) has no folder for settings."""
    return HostMount(name="nri-socket", path=_folder(env.get("NRI_SOCKET") or _NRI_SOCKET), at=_NRI, type=_CREATE)


def _folder(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def _in(folder: str, path: str) -> str:
    return f"{folder}/{path.rpartition('/')[2]}"


def _below_host(source: str) -> str:
    kind, _, path = source.partition("=")
    return f"{kind}={HOST_ROOT.at}/{path.lstrip('/')}" if kind == "file" and path else source


_INSTALL = "/usr/local/nvidia"
_FROM_HOST = "HostToContainer"
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
    runtime = runtime.with_paths(policy.toolkit.env)
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


def _toolkit(policy: DriverPolicy, runtime: Runtime, mounts: list[HostMount]) -> Json:
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


def _mounts(policy: DriverPolicy, runtime: Runtime) -> list[HostMount]:
    install = policy.toolkit.install_dir or _INSTALL
    return [
        HostMount(name="toolkit-root", path="/run/nvidia/toolkit", at="/run/nvidia/toolkit", type=_CREATE),
        HostMount(name="toolkit-install-dir", path=install, at=install, type=_CREATE),
        HostMount(
            name="driver-install-dir",
            path=policy.driver_root,
            at="/driver-root",
            type=_CREATE,
            propagation=_FROM_HOST,
        ),
        HOST_ROOT,
        HostMount(name="cdi-root", path="/var/run/cdi", at="/var/run/cdi", type=_CREATE),
        *([nri_mount(policy.toolkit.env)] if policy.nri_plugin else runtime.mounts()),
    ]
