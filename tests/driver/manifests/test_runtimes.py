"""Files of container runtimes on the host: mounted where ``toolkit.env`` says, and named to the toolkit inside itself.

The tables hold what NVIDIA's operator expects of itself in its tests of the toolkit's DaemonSet and of its files.
"""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from tessera.driver.manifests.host import validation_pod
from tessera.driver.manifests.toolkit import CONTAINERD, CRIO, DOCKER, Runtime, toolkit_daemonset
from tessera.gpu_operator.driver_policy import DriverPolicy, ImageSource, OperandSettings

SOURCE = ImageSource(repository="nvcr.io/nvidia/k8s", image="container-toolkit", version="v1.20.0")
K3S = "/var/lib/rancher/k3s/agent/etc/containerd"
RKE2 = "/var/lib/rancher/rke2/agent/etc/containerd"
MICROK8S = "/var/snap/microk8s/current/args"


def policy(env: dict[str, str], *, nri_plugin: bool = False) -> DriverPolicy:
    return DriverPolicy(
        kind="ClusterPolicy", name="p", toolkit=OperandSettings(source=SOURCE, env=env), nri_plugin=nri_plugin
    )


class Rendered:
    """Variables and mounts of the toolkit's container."""

    def __init__(self, env: dict[str, str], runtime: Runtime = CONTAINERD, *, nri_plugin: bool = False) -> None:
        spec = toolkit_daemonset(policy(env, nri_plugin=nri_plugin), "tessera:1", runtime)["spec"]["template"]["spec"]
        (container,) = spec["containers"]
        self.env = {each["name"]: each["value"] for each in container["env"]}
        self.repeated = len(container["env"]) - len(self.env)
        self.at = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
        self.paths = {each["name"]: each["hostPath"]["path"] for each in spec["volumes"]}
        self.ready = container["readinessProbe"]["exec"]["command"][-1]

    def host(self, variable: str) -> str:
        """The file of the host that the toolkit finds where a variable says."""
        folder, _, name = self.env[variable].rpartition("/")
        (volume,) = [each for each, path in self.at.items() if path == folder]
        return f"{self.paths[volume]}/{name}"


FILES: list[tuple[str, Runtime, dict[str, str], str, str]] = [
    ("docker", DOCKER, {}, "/etc/docker/daemon.json", ""),
    ("docker, elsewhere", DOCKER, {"RUNTIME_CONFIG": "/path/daemon.json"}, "/path/daemon.json", ""),
    (
        "docker, its own variable counts first",
        DOCKER,
        {"RUNTIME_CONFIG": "/path/daemon.json", "DOCKER_CONFIG": "/another/daemon.json"},
        "/another/daemon.json",
        "",
    ),
    ("containerd", CONTAINERD, {}, "/etc/containerd/config.toml", "/etc/containerd/conf.d/99-nvidia.toml"),
    (
        "containerd, elsewhere",
        CONTAINERD,
        {"RUNTIME_CONFIG": "/path/config.toml", "RUNTIME_DROP_IN_CONFIG": "/path/drop-in/nvidia.toml"},
        "/path/config.toml",
        "/path/drop-in/nvidia.toml",
    ),
    (
        "containerd, its own variable counts first",
        CONTAINERD,
        {"RUNTIME_CONFIG": "/path/config.toml", "CONTAINERD_CONFIG": "/another/config.toml"},
        "/another/config.toml",
        "/etc/containerd/conf.d/99-nvidia.toml",
    ),
    ("crio", CRIO, {}, "/etc/crio/config.toml", "/etc/crio/crio.conf.d/99-nvidia.conf"),
    (
        "crio, elsewhere",
        CRIO,
        {"RUNTIME_CONFIG": "/path/config.toml", "RUNTIME_DROP_IN_CONFIG": "/path/drop-in/nvidia.conf"},
        "/path/config.toml",
        "/path/drop-in/nvidia.conf",
    ),
    (
        "crio, its own variable counts first",
        CRIO,
        {"RUNTIME_CONFIG": "/path/config.toml", "CRIO_CONFIG": "/another/config.toml"},
        "/another/config.toml",
        "/etc/crio/crio.conf.d/99-nvidia.conf",
    ),
    (
        "k3s",
        CONTAINERD,
        {
            "CONTAINERD_CONFIG": f"{K3S}/config.toml.tmpl",
            "RUNTIME_DROP_IN_CONFIG": f"{K3S}/config-v3.toml.d/99-nvidia.toml",
        },
        f"{K3S}/config.toml.tmpl",
        f"{K3S}/config-v3.toml.d/99-nvidia.toml",
    ),
    (
        "RKE2",
        CONTAINERD,
        {"CONTAINERD_CONFIG": f"{RKE2}/config.toml.tmpl"},
        f"{RKE2}/config.toml.tmpl",
        "/etc/containerd/conf.d/99-nvidia.toml",
    ),
    (
        "microk8s",
        CONTAINERD,
        {"CONTAINERD_CONFIG": f"{MICROK8S}/containerd-template.toml"},
        f"{MICROK8S}/containerd-template.toml",
        "/etc/containerd/conf.d/99-nvidia.toml",
    ),
    ("a file of the root", CRIO, {"CRIO_CONFIG": "/crio.toml"}, "/crio.toml", "/etc/crio/crio.conf.d/99-nvidia.conf"),
]


@pytest.mark.parametrize(
    ("runtime", "env", "config", "drop_in"), [each[1:] for each in FILES], ids=[e[0] for e in FILES]
)
def test_the_toolkit_writes_the_runtimes_own_files(
    runtime: Runtime, env: dict[str, str], config: str, drop_in: str
) -> None:
    found = Rendered(env, runtime)
    for variable in ("RUNTIME_CONFIG", f"{runtime.name.upper()}_CONFIG"):
        assert found.host(variable).replace("//", "/") == config
        assert found.env[variable].startswith("/runtime/config-dir/")
    if drop_in:
        assert found.host("RUNTIME_DROP_IN_CONFIG") == drop_in
        assert found.env["RUNTIME_DROP_IN_CONFIG_HOST_PATH"] == drop_in
    else:
        assert "RUNTIME_DROP_IN_CONFIG" not in found.env
    assert found.env["RUNTIME"] == runtime.name
    assert found.repeated == 0
    named = [found.env[name] for name in ("RUNTIME_DROP_IN_CONFIG", "RUNTIME_CONFIG") if name in found.env]
    assert found.ready.endswith(f"grep -qs nvidia {' '.join(named)}")


SOCKETS: list[tuple[str, Runtime, dict[str, str], str]] = [
    ("containerd", CONTAINERD, {}, "/run/containerd/containerd.sock"),
    (
        "k3s and RKE2",
        CONTAINERD,
        {"CONTAINERD_SOCKET": "/run/k3s/containerd/containerd.sock"},
        "/run/k3s/containerd/containerd.sock",
    ),
    (
        "microk8s",
        CONTAINERD,
        {"CONTAINERD_SOCKET": "/var/snap/microk8s/common/run/containerd.sock"},
        "/var/snap/microk8s/common/run/containerd.sock",
    ),
    ("by the general variable", CONTAINERD, {"RUNTIME_SOCKET": "/run/other.sock"}, "/run/other.sock"),
    (
        "its own variable counts first",
        CONTAINERD,
        {"RUNTIME_SOCKET": "/run/other.sock", "CONTAINERD_SOCKET": "/run/own.sock"},
        "/run/own.sock",
    ),
    ("docker", DOCKER, {}, "/var/run/docker.sock"),
    ("docker, elsewhere", DOCKER, {"DOCKER_SOCKET": "/run/user/docker.sock"}, "/run/user/docker.sock"),
]


@pytest.mark.parametrize(("runtime", "env", "socket"), [each[1:] for each in SOCKETS], ids=[e[0] for e in SOCKETS])
def test_the_toolkit_speaks_to_the_runtimes_own_socket(runtime: Runtime, env: dict[str, str], socket: str) -> None:
    found = Rendered(env, runtime)
    assert found.host("RUNTIME_SOCKET") == socket
    assert found.host(f"{runtime.name.upper()}_SOCKET") == socket


def test_crio_has_no_socket_and_no_runtime_of_containerd() -> None:
    found = Rendered({}, CRIO)
    assert not {"RUNTIME_SOCKET", "CONTAINERD_SOCKET", "CONTAINERD_RUNTIME_CLASS"} & set(found.env)
    assert "/runtime/sock-dir" not in found.at.values()


def test_what_a_policy_says_besides_stands_but_for_the_handler_that_the_runtime_class_names() -> None:
    env = {
        "CONTAINERD_RUNTIME_CLASS": "other",
        "CONTAINERD_SET_AS_DEFAULT": "false",
        "RUNTIME_DROP_IN_CONFIG_HOST_PATH": "/elsewhere",
        "FOO": "bar",
    }
    found = Rendered(env)
    assert found.env["FOO"] == "bar"
    assert found.env["CONTAINERD_RUNTIME_CLASS"] == "nvidia"
    assert found.env["RUNTIME_DROP_IN_CONFIG_HOST_PATH"] == "/etc/containerd/conf.d/99-nvidia.toml"
    assert found.env["CONTAINERD_SET_AS_DEFAULT"] == "false"
    assert "NVIDIA_RUNTIME_SET_AS_DEFAULT" not in found.env  # which would count first
    assert Rendered({}).env["NVIDIA_RUNTIME_SET_AS_DEFAULT"] == "true"


@pytest.mark.parametrize("name", ["RUNTIME_CONFIG_SOURCE", "RUNTIME_CONFIG_SOURCES"])
def test_files_that_are_read_first_are_found_below_the_hosts_root(name: str) -> None:
    found = Rendered({name: f"command,file={K3S}/config.toml"})
    assert found.env[name] == f"command,file=/host{K3S}/config.toml"
    assert found.at["host-root"] == "/host"


@pytest.mark.parametrize(
    ("env", "socket"), [({}, "/var/run/nri/nri.sock"), ({"NRI_SOCKET": "/run/k3s/nri.sock"}, "/run/k3s/nri.sock")]
)
def test_a_toolkit_that_is_a_plugin_has_the_plugins_socket_and_no_file_of_settings(
    env: dict[str, str], socket: str
) -> None:
    found = Rendered(env, nri_plugin=True)
    assert found.host("NRI_SOCKET") == socket
    assert found.env["ENABLE_NRI_PLUGIN"] == "true"
    assert found.env["NRI_NAMESPACE"] == "tessera-system"
    assert not [name for name in found.env if name.startswith(("RUNTIME_", "CONTAINERD_"))]
    assert not {"containerd-config", "containerd-drop-in-config", "containerd-socket"} & set(found.paths)
    assert "grep" not in found.ready


def test_a_validation_asks_the_plugin_for_the_cards_where_there_is_one() -> None:
    made: dict[str, Any] = validation_pod("tessera:1", node="n", node_uid="u", driver_set="s", nri_plugin=True)
    assert "runtimeClassName" not in made["spec"]
    (container,) = made["spec"]["containers"]
    key = f"nvidia.cdi.k8s.io/container.{container['name']}"
    assert made["metadata"]["annotations"] == {key: "management.nvidia.com/gpu=all"}


def test_a_file_whose_name_is_a_piece_of_shell_is_looked_at_and_not_run(tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    ready = Rendered({"CONTAINERD_CONFIG": f"/etc/a;touch ${{IFS}}{trap.name};b"}).ready
    subprocess.run(["sh", "-c", ready], cwd=tmp_path, env={"TOOLKIT_PID_FILE": "/etc/hostname"}, check=False)
    assert not list(tmp_path.iterdir())
