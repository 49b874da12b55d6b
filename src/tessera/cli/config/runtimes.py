"""What a node with a container toolkit of its own needs: settings of its container runtime and of NVIDIA's runtime.

Where Tessera installs the toolkit, NVIDIA's container writes all of this
(:mod:`tessera.driver.manifests.toolkit`). Sources: containerd, ``docs/cri/config.md`` (versions 2 and 3 of its file);
CRI-O, ``crio.conf.d(5)``; Docker, ``daemon.json``; k3s and RKE2, agent options; nvidia-container-toolkit,
``internal/config``.

containerd 1.7 replaces the whole section of a plugin by that of an imported file: a file of its own with NVIDIA's
runtime alone would take away the sandbox image and the cgroup driver. containerd 2 merges. A file that names runtimes
has no others by default, so ``runc`` is named too.
"""

import msgspec

from tessera.driver.manifests.toolkit import runtime_class

#: Where packages of the toolkit put NVIDIA's runtime.
_BINARY = "/usr/bin/nvidia-container-runtime"
_OWN_CONFIG = "/etc/nvidia-container-runtime/config.toml"


class SettingsFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One file of a node.

    Attributes:
        path: on the node.
        text: what it holds.
        merge: the file is there already, and keeps what else it says.
    """

    path: str
    text: str
    merge: bool = False


class RuntimeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a container runtime.

    Attributes:
        files: the files of the node.
        restart: the command that has the runtime read them.
    """

    files: tuple[SettingsFile, ...]
    restart: str


#: A variable of an image counts in privileged containers only; others get devices by mounts, which only agents make.
#: NVIDIA's runtime starts the first of the runtimes that it finds; those of CRI-O's packages are in no PATH.
#: Mode ``cdi`` would look for a new slice in files from before (docs/decisions/container-environment.md).
NVIDIA = SettingsFile(
    path=_OWN_CONFIG,
    merge=True,
    text="""\
accept-nvidia-visible-devices-envvar-when-unprivileged = false
accept-nvidia-visible-devices-as-volume-mounts = true

[nvidia-container-runtime]
mode = "auto"
runtimes = ["runc", "crun", "/usr/libexec/crio/crun", "/usr/libexec/crio/runc"]
""",
)


def _containerd(version: int, plugin: str, more: str = "") -> str:
    name = f"plugins.'{plugin}'"
    return f"""\
version = {version}

[{name}]
enable_cdi = true
cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]

[{name}.containerd]
default_runtime_name = "nvidia"

[{name}.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[{name}.containerd.runtimes.nvidia]
runtime_type = "io.containerd.runc.v2"

[{name}.containerd.runtimes.nvidia.options]
BinaryName = "{_BINARY}"
{more}"""


_SYSTEMD = "SystemdCgroup = true\n"
_VERSION_2 = _containerd(2, "io.containerd.grpc.v1.cri", _SYSTEMD)


def _rancher(name: str) -> RuntimeSettings:
    """k3s and RKE2 find NVIDIA's runtime by themselves, and make the handler; containerd 2 has CDI on."""
    config = SettingsFile(path=f"/etc/rancher/{name}/config.yaml", text="default-runtime: nvidia\n", merge=True)
    unit = "k3s" if name == "k3s" else "rke2-server"
    return RuntimeSettings(files=(config, NVIDIA), restart=f"systemctl restart {unit}, and on agents {name}-agent")


RUNTIMES = {
    "containerd-1.7": RuntimeSettings(
        files=(SettingsFile(path="/etc/containerd/config.toml", text=_VERSION_2, merge=True), NVIDIA),
        restart="systemctl restart containerd",
    ),
    "containerd": RuntimeSettings(
        files=(
            SettingsFile(
                path="/etc/containerd/config.toml", text='imports = ["/etc/containerd/conf.d/*.toml"]\n', merge=True
            ),
            SettingsFile(
                path="/etc/containerd/conf.d/99-nvidia.toml",
                text=_containerd(3, "io.containerd.cri.v1.runtime", _SYSTEMD),
            ),
            NVIDIA,
        ),
        restart="systemctl restart containerd",
    ),
    "crio": RuntimeSettings(
        files=(
            SettingsFile(
                path="/etc/crio/crio.conf.d/99-nvidia.conf",
                text=f"""\
[crio.runtime]
default_runtime = "nvidia"
cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]

[crio.runtime.runtimes.nvidia]
runtime_path = "{_BINARY}"
runtime_type = "oci"
# Where CRI-O's packages put it. Write the default runtime's monitor_path of "crio status config", or nothing if it has
# none: CRI-O does not start with a path that does not exist.
monitor_path = "/usr/libexec/crio/conmon"
""",
            ),
            NVIDIA,
        ),
        restart="systemctl restart crio",
    ),
    "docker": RuntimeSettings(
        files=(
            SettingsFile(
                path="/etc/docker/daemon.json",
                text=f"""\
{{
  "default-runtime": "nvidia",
  "features": {{"cdi": true}},
  "runtimes": {{"nvidia": {{"path": "{_BINARY}", "args": []}}}}
}}
""",
                merge=True,
            ),
            NVIDIA,
        ),
        restart="systemctl restart docker cri-docker",
    ),
    "k3s": _rancher("k3s"),
    "rke2": _rancher("rke2"),
    "microk8s": RuntimeSettings(
        files=(
            SettingsFile(
                path="/var/snap/microk8s/current/args/containerd-template.toml",
                text=_containerd(2, "io.containerd.grpc.v1.cri"),
                merge=True,
            ),
            NVIDIA,
        ),
        restart="snap restart microk8s.daemon-containerd",
    ),
}


def class_manifest() -> dict[str, object]:
    """The RuntimeClass for pods on nodes where NVIDIA's runtime is not the default one."""
    return {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", **runtime_class()}
