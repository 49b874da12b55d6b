"""Profiles and layouts that an installation brings: edited by people, and kept by every way to upgrade."""

from typing import Any

import pytest
import yaml
from charts.files import FOLDER
from tests.support.helm_program import HELM

NAMES = ("sharing-profiles", "mig-layouts")
LAYOUT = "version: v1\nmig-configs:\n  ours:\n  - {devices: all, mig-enabled: false}\n"


@pytest.fixture(scope="module")
def lab_arguments() -> list[str]:
    return ["--nodes", "4xA100-40GB", "--mig-config", ""]


def data(cluster: Any, name: str) -> dict[str, str]:
    found: dict[str, str] = cluster.get("configmap", name, "-n", "tessera-system").get("data") or {}
    return found


def offered(cluster: Any) -> dict[str, str]:
    allocatable = cluster.get("node", "node-1")["status"]["allocatable"]
    return {name: amount for name, amount in allocatable.items() if name.startswith("nvidia.com/") and amount != "0"}


def patch(cluster: Any, name: str, entries: dict[str, str | None]) -> None:
    text = yaml.safe_dump({"data": entries})
    cluster.kubectl("patch", "configmap", name, "-n", "tessera-system", "--type=merge", "-p", text)


def test_a_fresh_installation_has_them_and_a_label_is_enough(cluster: Any) -> None:
    assert cluster.eventually(lambda: all(data(cluster, name) for name in NAMES))
    assert {"slice-2", "slice-4", "mps-4"} <= data(cluster, "sharing-profiles").keys()
    assert "all-balanced:" in data(cluster, "mig-layouts")["config.yaml"]
    cluster.kubectl("label", "node", "node-1", "nvidia.com/device-plugin.config=slice-4")
    assert cluster.eventually(lambda: offered(cluster) == {"nvidia.com/gpu.shared": "16"})
    cluster.kubectl("label", "node", "node-1", "nvidia.com/device-plugin.config-", "nvidia.com/mig.config=all-balanced")
    balanced = {"nvidia.com/mig-1g.5gb": "8", "nvidia.com/mig-2g.10gb": "4", "nvidia.com/mig-3g.20gb": "4"}
    assert cluster.eventually(lambda: offered(cluster) == balanced)
    # The webhook gates no pod that a fixed layout serves; the doctor must not take that for a fault.
    assert "webhook-reachable: the webhook refused a trial pod" in cluster.tessera("doctor", "--all")


def test_an_edit_stays_whatever_is_applied(cluster: Any) -> None:
    assert cluster.eventually(lambda: all(data(cluster, name) for name in NAMES))
    edited = data(cluster, "sharing-profiles")["slice-4"].replace("replicas: 4", "replicas: 6")
    patch(cluster, "sharing-profiles", {"slice-4": edited, "slice-2": None})
    patch(cluster, "mig-layouts", {"more.yaml": LAYOUT})
    before = {name: data(cluster, name) for name in NAMES}
    assert "slice-2" not in before["sharing-profiles"]
    for command in (
        ("kubectl", "apply", "-k", "deploy/"),
        ("kubectl", "apply", "-k", "deploy/", "--server-side", "--force-conflicts"),
    ):
        done = cluster.run(*command)
        assert done.returncode == 0, done.stderr
        assert {name: data(cluster, name) for name in NAMES} == before
    cluster.tessera("install")
    assert {name: data(cluster, name) for name in NAMES} == before


def test_a_new_controller_keeps_it_too_and_the_node_follows_the_edit(cluster: Any) -> None:
    before = {name: data(cluster, name) for name in NAMES}
    deployment = ("-n", "tessera-system", "deployment/tessera-controller")
    cluster.kubectl("rollout", "restart", *deployment)
    cluster.kubectl("rollout", "status", *deployment, "--timeout=180s")
    labels = ("nvidia.com/mig.config=ours", "nvidia.com/device-plugin.config=slice-4")
    cluster.kubectl("label", "node", "node-1", "--overwrite", *labels)
    assert cluster.eventually(lambda: offered(cluster) == {"nvidia.com/gpu.shared": "24"})
    assert {name: data(cluster, name) for name in NAMES} == before


def test_helm_takes_an_installation_over_and_no_pod_restarts(cluster: Any) -> None:
    def pods() -> list[str]:
        return sorted(each["metadata"]["uid"] for each in cluster.get("pods", "-n", "tessera-system")["items"])

    cluster.tessera("install")
    cluster.kubectl("rollout", "status", "-n", "tessera-system", "daemonset/tessera-agent", "--timeout=180s")
    before, profiles = pods(), data(cluster, "sharing-profiles")
    release = ("tessera", str(FOLDER), "--namespace", "kube-system")
    refused = cluster.run(HELM, "upgrade", "-i", *release)
    assert "invalid ownership metadata" in refused.stderr
    done = cluster.run(HELM, "upgrade", "-i", *release, "--take-ownership")
    assert done.returncode == 0, done.stderr
    assert (pods(), data(cluster, "sharing-profiles")) == (before, profiles)
    done = cluster.run(HELM, "uninstall", "tessera", "--namespace", "kube-system")
    assert done.returncode == 0, done.stderr
    assert cluster.run("kubectl", "get", "namespace", "tessera-system").returncode != 0
