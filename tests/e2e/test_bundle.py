"""The OLM bundle on a lab: a stand-in for OLM makes what the bundle has, the operator in it makes the rest.

The names are those of the article on the dynamic accelerator slicer: ``oc new-project instaslice-system``, then
``operator-sdk run bundle ... -n instaslice-system``.
"""

from collections.abc import Mapping
from typing import Any

import pytest
from bundle.files import FOLDER, generate
from bundle.publisher import Publisher
from tests.support.inventory import inventory
from tests.support.olm_stand_in import OlmStandIn
from tests.support.running_lab import RunningLab

from tessera.doctor.manifests import install_manifests, page_manifests

NAMESPACE = "instaslice-system"
SETTINGS = ("configmap/tessera-install", "-n", NAMESPACE)


@pytest.fixture(scope="module")
def lab_arguments() -> list[str]:
    return ["--no-tessera", "--nodes", "4xA100-40GB"]


@pytest.fixture(scope="module")
def bare(cluster: RunningLab) -> Mapping[str, Any]:
    """The cluster before the bundle."""
    return inventory(cluster)


@pytest.fixture(scope="module")
def olm(cluster: RunningLab, bare: Mapping[str, Any]) -> OlmStandIn:
    assert bare
    cluster.kubectl("create", "namespace", NAMESPACE)
    stand_in = OlmStandIn(cluster, FOLDER, NAMESPACE)
    stand_in.install()
    cluster.eventually(lambda: stand_in.phase() == "Succeeded")
    # The lab asks no container if it is ready, so the phase says only that the operator runs.
    last = "mutatingwebhookconfiguration", "tessera-webhook"
    cluster.eventually(lambda: cluster.run("kubectl", "get", *last).returncode == 0)
    return stand_in


def policies(cluster: RunningLab) -> set[str]:
    return {each["metadata"]["name"] for each in cluster.get("networkpolicy", "-n", "tessera-system")["items"]}


def identity(manifest: Mapping[str, Any]) -> tuple[str, str, str]:
    return manifest["kind"], manifest["metadata"].get("namespace", ""), manifest["metadata"]["name"]


def options(cluster: RunningLab, text: str) -> None:
    settings = {"apiVersion": "v1", "kind": "ConfigMap", "data": {"options": text}}
    metadata = {"name": "tessera-install", "namespace": NAMESPACE}
    cluster.apply({**settings, "metadata": metadata})


@pytest.mark.usefixtures("olm")
def test_a_pod_gets_its_slice_and_the_instaslice_shows_it(cluster: RunningLab) -> None:
    cluster.kubectl("rollout", "status", "daemonset/tessera-agent", "-n", "tessera-system", "--timeout=180s")
    for name in ("tessera-controller", "tessera-webhook"):
        cluster.kubectl("rollout", "status", f"deployment/{name}", "-n", "tessera-system", "--timeout=180s")
    cluster.eventually(lambda: cluster.get("instaslices", "-n", NAMESPACE)["items"])
    cluster.apply(cluster.pod("vllm", {"nvidia.com/mig-3g.20gb": 1}), NAMESPACE)
    cluster.kubectl("wait", "pod/vllm", "-n", NAMESPACE, "--for=condition=Ready", "--timeout=180s")
    uid = cluster.get("pod", "vllm", "-n", NAMESPACE)["metadata"]["uid"]
    assert cluster.slices("node-1")[uid]["allocationStatus"] == {
        "allocationStatusController": "ungated",
        "allocationStatusDaemonset": "created",
    }


@pytest.mark.usefixtures("olm")
def test_every_object_of_deploy_is_there_and_the_webhook_has_its_conditions(cluster: RunningLab) -> None:
    found = cluster.get("-k", "deploy/")["items"]  # kubectl fails if one of them is missing
    assert sorted(map(identity, found)) == sorted(map(identity, [*install_manifests(), *page_manifests()]))
    (wanted,) = (each for each in install_manifests() if each["kind"] == "MutatingWebhookConfiguration")
    hooks = cluster.get("mutatingwebhookconfiguration", "tessera-webhook")["webhooks"]
    conditions = {each["name"]: each.get("matchConditions") for each in hooks}
    assert conditions == {each["name"]: each.get("matchConditions") for each in wanted["webhooks"]}


@pytest.mark.usefixtures("olm")
def test_settings_change_the_objects(cluster: RunningLab) -> None:
    before, objects = policies(cluster), [*install_manifests(), *page_manifests()]
    assert before == {each["metadata"]["name"] for each in objects if each["kind"] == "NetworkPolicy"}
    options(cluster, "--without network-policies  # the cluster's mesh has its own\n")
    assert cluster.eventually(lambda: not policies(cluster))
    cluster.kubectl("delete", *SETTINGS)
    assert cluster.eventually(lambda: policies(cluster) == before)


@pytest.mark.usefixtures("olm")
def test_what_others_delete_or_change_comes_back(cluster: RunningLab) -> None:
    cluster.kubectl("delete", "validatingadmissionpolicybinding", "tessera-agent")
    options(cluster, "# any change starts a round; else the next one comes within a minute\n")

    def bound() -> Any:
        return cluster.run("kubectl", "get", "validatingadmissionpolicybinding", "tessera-agent").returncode == 0

    assert cluster.eventually(bound)
    cluster.kubectl("delete", *SETTINGS)


@pytest.mark.usefixtures("olm")
def test_it_is_not_removed_under_its_operator(cluster: RunningLab) -> None:
    refused = cluster.tessera("uninstall", "--yes", fails=True)
    assert f"the operator in namespace {NAMESPACE} would install Tessera again" in refused
    assert "Subscription" in refused
    refused = cluster.tessera("install", fails=True)
    assert f"the operator in namespace {NAMESPACE} installs Tessera; nothing was changed" in refused
    assert f"ConfigMap {NAMESPACE}/tessera-install" in refused
    assert (
        cluster.get("daemonset", "tessera-agent", "-n", "tessera-system")["metadata"].get("deletionTimestamp") is None
    )


@pytest.fixture(scope="module")
def newer(cluster: RunningLab, tmp_path_factory: pytest.TempPathFactory) -> OlmStandIn:
    """The next version of the bundle."""
    folder = tmp_path_factory.mktemp("newer")
    for name, text in generate(Publisher(version="0.2.1", image="tessera:0.2.1", replaces="tessera.v0.2.0")).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return OlmStandIn(cluster, folder, NAMESPACE)


@pytest.mark.soak
@pytest.mark.usefixtures("olm")
def test_another_version_replaces_everything_and_keeps_the_slice(cluster: RunningLab, newer: OlmStandIn) -> None:
    before = cluster.get("pod", "vllm", "-n", NAMESPACE)["metadata"]["uid"]
    slices = cluster.slices("node-1")
    newer.install()

    def image() -> str:
        spec = cluster.get("daemonset", "tessera-agent", "-n", "tessera-system")["spec"]["template"]["spec"]
        return str(spec["containers"][0]["image"])

    assert cluster.eventually(lambda: image() == "tessera:0.2.1")
    cluster.kubectl("rollout", "status", "daemonset/tessera-agent", "-n", "tessera-system", "--timeout=180s")
    pod = cluster.get("pod", "vllm", "-n", NAMESPACE)
    assert pod["metadata"]["uid"] == before
    assert {each["status"] for each in pod["status"]["conditions"] if each["type"] == "Ready"} == {"True"}
    assert cluster.slices("node-1") == slices


def test_after_its_operator_everything_is_removed(
    cluster: RunningLab, olm: OlmStandIn, newer: OlmStandIn, bare: Mapping[str, Any]
) -> None:
    """A pod of the seed's project runs on, so the project stays with it."""
    for version in (olm, newer):
        version.remove()
    told = cluster.tessera("uninstall", "--yes")
    assert told.endswith("Tessera is removed\n")
    assert "Pod vllm" in told
    assert cluster.get("pod", "vllm", "-n", NAMESPACE)["status"]["phase"] == "Running"
    cluster.kubectl("delete", "namespace", NAMESPACE)
    assert inventory(cluster) == bare
