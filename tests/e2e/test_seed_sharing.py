"""The article on sharing, command by command: its values file, its two ConfigMaps, its labels, its two ReplicaSets.

What the article tells to wait for "1 to 2 minutes" is waited for here too. Each test begins with the node that it is
about as the article has it at that point: most find it so, and a test that runs alone makes it so.
"""

import json
import re
from typing import Any

import pytest

#: What node-2 offers with the article's layout.
CUT = {"nvidia.com/mig-1g.5gb": 12, "nvidia.com/mig-2g.10gb": 8}


@pytest.fixture(scope="module")
def lab_arguments() -> list[str]:
    return ["--nodes", "4xA100-40GB,4xA100-40GB,2xT4", "--mig-config", ""]


@pytest.fixture(scope="module")
def cluster(cluster: Any) -> Any:
    """The lab after the article's installation."""
    said = cluster.tessera("install", "--values", "examples/sharing/values.yaml", "--namespace", "kube-system")
    assert "daemonset.apps/tessera-agent in tessera-system configured" in said
    cluster.kubectl("apply", "-f", "examples/sharing/time-slicing-config.yaml")
    cluster.kubectl("apply", "-f", "examples/sharing/mig-config.yaml")
    cluster.kubectl("rollout", "status", "-n", "tessera-system", "daemonset/tessera-agent", "--timeout=180s")
    return cluster


def gpus(cluster: Any, node: str) -> dict[str, int]:
    """A node's allocatable NVIDIA resources; a resource at 0 counts as absent, as pods cannot use it."""
    told = cluster.get("node", node)["status"]["allocatable"]
    return {name: int(text) for name, text in told.items() if name.startswith("nvidia.com/") and text != "0"}


def label(cluster: Any, node: str, text: str) -> None:
    """``kubectl label node``."""
    cluster.kubectl("label", "node", node, text, "--overwrite")


def becomes(cluster: Any, node: str, wanted: dict[str, int]) -> None:
    cluster.eventually(lambda: gpus(cluster, node) == wanted)


@pytest.fixture
def shared(cluster: Any) -> None:
    """Node-1 offers sixteen shares, and the article's five pods have each one."""
    cluster.kubectl("apply", "-f", "examples/sharing/time-slicing-config.yaml")
    label(cluster, "node-1", "nvidia.com/device-plugin.config=slice-4")
    becomes(cluster, "node-1", {"nvidia.com/gpu.shared": 16})
    cluster.kubectl("apply", "-f", "examples/sharing/time-slice-test.yaml")
    cluster.eventually(lambda: len(_running(cluster, "node-1")) == 5)


@pytest.fixture
def uncut(cluster: Any) -> None:
    """Node-2 offers whole cards, and nobody has one."""
    cluster.kubectl("delete", "replicaset", "nvidia-test-mig-a100", "--ignore-not-found", "--wait", "--timeout=180s")
    if "nvidia.com/mig.config" in cluster.get("node", "node-2")["metadata"]["labels"]:
        label(cluster, "node-2", "nvidia.com/mig.config=all-disabled")
    becomes(cluster, "node-2", {"nvidia.com/gpu": 4})


@pytest.fixture
def cut(cluster: Any) -> None:
    """Node-2 has the article's layout, and the article's four pods have each a slice."""
    label(cluster, "node-2", "nvidia.com/mig.config=2x2g.10gb-3x1g.5gb")
    becomes(cluster, "node-2", CUT)
    cluster.kubectl("apply", "-f", "examples/sharing/mig-test.yaml")
    cluster.eventually(lambda: len(_running(cluster, "node-2")) == 4)


def test_slice_4_makes_sixteen_shares_of_four_cards_and_five_pods_run_on_them(cluster: Any) -> None:
    cluster.kubectl("delete", "replicaset", "nvidia-test-time-slice", "--ignore-not-found", "--wait", "--timeout=180s")
    cluster.kubectl("label", "node", "node-1", "nvidia.com/device-plugin.config-")
    cluster.kubectl("apply", "-f", "examples/sharing/time-slicing-config.yaml")
    becomes(cluster, "node-1", {"nvidia.com/gpu": 4})
    label(cluster, "node-1", "nvidia.com/device-plugin.config=slice-4")
    becomes(cluster, "node-1", {"nvidia.com/gpu.shared": 16})
    described = cluster.kubectl("describe", "node", "node-1")
    assert re.search(r"Allocatable:(\n +\S.*)*\n +nvidia\.com/gpu\.shared: +16\n", described)
    labels = cluster.eventually(lambda: _labels(cluster, "node-1", "nvidia.com/gpu.replicas", "4"))
    assert labels["nvidia.com/gpu.product"] == "NVIDIA-A100-SXM4-40GB"
    assert (labels["nvidia.com/gpu.count"], labels["nvidia.com/gpu.sharing-strategy"]) == ("4", "time-slicing")

    cluster.kubectl("apply", "-f", "examples/sharing/time-slice-test.yaml")
    cluster.eventually(lambda: len(_running(cluster, "node-1")) == 5)


@pytest.mark.usefixtures("shared")
def test_more_than_one_share_is_refused_before_the_pod_exists(cluster: Any) -> None:
    greedy = cluster.pod("greedy", {"nvidia.com/gpu.shared": 2})
    said = cluster.kubectl("apply", "-f", "-", manifest=greedy, fails=True)
    assert "asks for 2 of nvidia.com/gpu.shared" in said
    assert "ask for one" in said


@pytest.mark.usefixtures("shared")
def test_slice_10_takes_over_while_the_five_pods_run(cluster: Any) -> None:
    before = {pod["metadata"]["uid"] for pod in _running(cluster, "node-1")}
    label(cluster, "node-1", "nvidia.com/device-plugin.config=slice-10")
    becomes(cluster, "node-1", {"nvidia.com/gpu.shared": 40})
    assert {pod["metadata"]["uid"] for pod in _running(cluster, "node-1")} == before


@pytest.mark.usefixtures("shared")
def test_a_change_of_the_config_map_alone_is_enough(cluster: Any) -> None:
    patch = {"data": {"slice-4": _profile(6)}}
    cluster.kubectl("patch", "configmap", "-n", "kube-system", "nvidia-time-slicing-config", "-p", json.dumps(patch))
    becomes(cluster, "node-1", {"nvidia.com/gpu.shared": 24})


@pytest.mark.usefixtures("uncut")
def test_the_mig_layout_cuts_four_cards_into_twelve_and_eight_and_four_pods_run_on_them(cluster: Any) -> None:
    label(cluster, "node-2", "nvidia.com/mig.config=2x2g.10gb-3x1g.5gb")
    becomes(cluster, "node-2", CUT)
    cluster.eventually(lambda: _labels(cluster, "node-2", "nvidia.com/mig.config.state", "success"))
    listing = cluster.tessera("lab", "smi", "node-2")
    assert (listing.count("MIG 1g.5gb"), listing.count("MIG 2g.10gb")) == (12, 8)

    cluster.kubectl("apply", "-f", "examples/sharing/mig-test.yaml")
    cluster.eventually(lambda: len(_running(cluster, "node-2")) == 4)


@pytest.mark.usefixtures("cut")
def test_a_layout_that_replaces_slices_in_use_waits_for_their_pods_and_names_them(cluster: Any) -> None:
    label(cluster, "node-2", "nvidia.com/mig.config=all-1g.5gb")
    found = cluster.eventually(lambda: _condition(cluster, "node-2", "GpuMigLayoutApplied", "Unknown", "CardsInUse"))
    assert any(pod["metadata"]["name"] in found["message"] for pod in _running(cluster, "node-2"))
    assert len(_running(cluster, "node-2")) == 4
    cluster.kubectl("delete", "replicaset", "nvidia-test-mig-a100", "--wait", "--timeout=180s")
    cluster.eventually(lambda: gpus(cluster, "node-2") == {"nvidia.com/mig-1g.5gb": 28})


@pytest.mark.usefixtures("shared", "uncut")
def test_whole_shared_fixed_and_on_demand_nodes_live_in_one_cluster(cluster: Any) -> None:
    label(cluster, "node-2", "nvidia.com/mig.config=dynamic")
    cluster.eventually(lambda: "node-2" in cluster.kubectl("get", "instaslices", "-A"))
    cluster.eventually(lambda: gpus(cluster, "node-2").get("nvidia.com/mig-7g.40gb") == 4)
    assert gpus(cluster, "node-1") == {"nvidia.com/gpu.shared": 16}
    assert gpus(cluster, "node-3") == {"nvidia.com/gpu": 2}
    for name, resource, node in (
        ("on-demand", "nvidia.com/mig-3g.20gb", "node-2"),
        ("shared", "nvidia.com/gpu.shared", "node-1"),
        ("whole", "nvidia.com/gpu", "node-3"),
    ):
        cluster.apply(cluster.pod(name, {resource: 1}))
        cluster.kubectl("wait", f"pod/{name}", "--for=condition=Ready", "--timeout=180s")
        assert cluster.get("pod", name)["spec"]["nodeName"] == node
    cluster.kubectl("delete", "pod", "on-demand", "shared", "whole", "--wait", "--timeout=180s")


def _running(cluster: Any, node: str) -> list[dict[str, Any]]:
    """The pods of the article that run on a node."""
    pods = cluster.get("pods", "-l", "app=nvidia-test", "--field-selector", f"spec.nodeName={node}")["items"]
    return [pod for pod in pods if pod["status"].get("phase") == "Running"]


def _labels(cluster: Any, node: str, key: str, value: str) -> dict[str, str]:
    labels: dict[str, str] = cluster.get("node", node)["metadata"]["labels"]
    return labels if labels.get(key) == value else {}


def _condition(cluster: Any, node: str, type_: str, status: str, reason: str = "") -> dict[str, Any]:
    for each in cluster.get("node", node)["status"]["conditions"]:
        if (each["type"], each["status"]) == (type_, status) and reason in {"", each["reason"]}:
            return dict(each)
    return {}


def _profile(replicas: int) -> str:
    block = {"renameByDefault": True, "resources": [{"name": "nvidia.com/gpu", "replicas": replicas}]}
    return json.dumps({"version": "v1", "sharing": {"timeSlicing": block}})
