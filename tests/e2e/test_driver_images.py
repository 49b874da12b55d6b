"""``tessera driver images`` and ``mirror`` for a whole cluster: its nodes, its policy and its pull secret."""

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.driver.registry.programs import Image, registry, tool
from tests.driver.registry.servers import HTPASSWD, docker_config

SYSTEM = "tessera-system"


@pytest.fixture(scope="module")
def lab_arguments() -> list[str]:
    """Three nodes whose hosts have no driver, and one whose host has: there its agent finds it."""
    return ["--nodes", "0,0,0,1xH100-80GB"]


@pytest.fixture(scope="module")
def kernel(cluster: Any) -> str:
    """Of all nodes. All but the third are told to run Ubuntu, by the labels of NFD; of that one nothing is known."""
    for node in ("node-1", "node-2", "node-4"):
        for name, value in (("ID", "ubuntu"), ("VERSION_ID", "22.04")):
            cluster.kubectl("label", "node", node, f"feature.node.kubernetes.io/system-os_release.{name}={value}")
    for node in ("node-1", "node-2", "node-3"):
        cluster.kubectl("label", "--overwrite", "node", node, "nvidia.com/gpu.present=true")
    found: str = cluster.get("node", "node-1")["status"]["nodeInfo"]["kernelVersion"]
    return found


@pytest.fixture(scope="module")
def origin(kernel: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A registry with a password, in which the nodes' kernel has an image of the branch, and the next one too."""
    folder = tmp_path_factory.mktemp("origin")
    with registry(folder / "storage") as running:
        images = {
            f"nvidia/driver:525-{kernel}-ubuntu22.04": Image(),
            "nvidia/driver:525.125.06-5.15.0-119-generic-ubuntu22.04": Image(content="next"),
            "nvidia/driver:525.125.06-ubuntu22.04": Image(content="sources"),
            "nvidia/toolkit:v1.20.0": Image(content="toolkit"),
            "nvidia/manager:v0.12.0": Image(content="manager"),
        }
        running.fill(folder, images)
    (folder / "htpasswd").write_text(HTPASSWD)
    with registry(folder / "storage", auth={"htpasswd": {"realm": "x", "path": str(folder / "htpasswd")}}) as running:
        yield running.host


@pytest.fixture
def policy(cluster: Any, origin: str) -> str:
    """The object that asks for drivers from there, with its pull secret, whatever a test made of it before."""
    encoded = base64.b64encode(docker_config(origin)).decode()
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "kubernetes.io/dockerconfigjson",
        "metadata": {"name": "pull", "namespace": SYSTEM},
        "data": {".dockerconfigjson": encoded},
    }
    cluster.apply(secret)
    there = {"repository": f"{origin}/nvidia", "imagePullSecrets": ["pull"]}
    driver = {
        "enabled": True,
        "usePrecompiled": True,
        **there,
        "image": "driver",
        "version": "525.125.06",
        "manager": {**there, "image": "manager", "version": "v0.12.0"},
    }
    toolkit = {**there, "image": "toolkit", "version": "v1.20.0"}
    made = {
        "apiVersion": "nvidia.com/v1",
        "kind": "ClusterPolicy",
        "metadata": {"name": "cluster-policy"},
        "spec": {"driver": driver, "toolkit": toolkit},
    }
    cluster.apply(made)
    return "cluster-policy"


@pytest.fixture
def mirror(cluster: Any, policy: str, origin: str, tmp_path: Path) -> Iterator[Callable[[], str]]:
    """Mirrors what the cluster needs into a registry of its own, and returns what was said."""
    auth = tmp_path / "auth.json"
    auth.write_bytes(docker_config(origin))
    cluster.env["PATH"] = f"{cluster.env['PATH']}:{Path(tool('skopeo')).parent}"
    with registry(tmp_path / "site") as running:
        arguments = ["--to", f"{running.host}/copies", "--plain-http", "--auth", str(auth)]
        yield lambda: str(cluster.tessera("driver", "mirror", "--cluster", *arguments))


def test_every_kind_of_node_is_told_its_image_and_a_node_without_facts_its_reason(
    cluster: Any, policy: str, kernel: str, origin: str
) -> None:
    done = cluster.run_tessera("driver", "images", "--cluster", "--plain-http", "-o", "json")
    said = json.loads(done.stdout)
    (answer,) = said["images"]
    assert answer["nodes"] == ["node-1", "node-2"]
    assert answer["strategy"] == "precompiled-branch"
    assert answer["pool"] == f"ubuntu22.04 {kernel} amd64"
    assert answer["image"].startswith(f"{origin}/nvidia/driver@sha256:")
    others = {each["node"]: each["reason"] for each in said["others"]}
    assert others.keys() == {"node-3", "node-4"}
    assert "operating system" in others["node-3"]
    assert others["node-4"].startswith("its agent found ")
    assert done.returncode == 0


def test_a_site_gets_what_its_nodes_and_their_next_kernels_need(
    cluster: Any, kernel: str, mirror: Callable[[], str]
) -> None:
    coming = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "driver-next-kernels", "namespace": SYSTEM},
        "data": {"ubuntu22.04": "5.15.0-119-generic\n"},
    }
    cluster.apply(coming)
    told = mirror()
    tags = {line.split()[3].rpartition("/")[2] for line in told.splitlines() if line.startswith("copied: ")}
    assert tags == {
        f"driver:525-{kernel}-ubuntu22.04",
        "driver:525.125.06-5.15.0-119-generic-ubuntu22.04",
        "driver:525.125.06-ubuntu22.04",
        "toolkit:v1.20.0",
        "manager:v0.12.0",
    }
    assert mirror().count("exists already: ") == 5


def test_without_a_policy_the_command_says_what_to_give_instead(cluster: Any, policy: str) -> None:
    cluster.kubectl("patch", "clusterpolicy", policy, "--type=merge", "-p", '{"spec":{"driver":{"enabled":false}}}')
    told = cluster.tessera("driver", "images", "--cluster", fails=True)
    assert "no policy of this cluster installs drivers" in told
    assert "Give --kernel and --os instead" in told
