"""Tessera is installed and removed by the real commands; kubectl looks at what is left."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from charts.files import FOLDER
from tests.support.helm_program import HELM
from tests.support.inventory import inventory
from tests.support.running_lab import ROOT, RunningLab

#: Parts of NVIDIA's operator.
NVIDIA = {
    "mig-manager": "nvcr.io/nvidia/cloud-native/k8s-mig-manager:v0.12.0",
    "gpu-feature-discovery": "nvcr.io/nvidia/gpu-feature-discovery:v0.17.0",
    "device-plugin": "nvcr.io/nvidia/k8s-device-plugin:v0.17.0",
    "dcgm-exporter": "nvcr.io/nvidia/k8s/dcgm-exporter:4.0.0",
}


@pytest.fixture(scope="module")
def lab_arguments() -> list[str]:
    return ["--no-tessera", "--nodes", "2*1xA100-40GB"]


@pytest.fixture(scope="module")
def bare(cluster: RunningLab) -> Mapping[str, Any]:
    """The cluster before Tessera."""
    return inventory(cluster)


@pytest.fixture
def installed(cluster: RunningLab, bare: Mapping[str, Any]) -> Iterator[RunningLab]:
    """The lab with Tessera; afterwards without it."""
    assert bare
    cluster.tessera("install")
    cluster.eventually(lambda: all(offers(node) for node in cluster.get("nodes")["items"]))
    yield cluster
    cluster.run_tessera("uninstall", "--yes")


def offers(node: Mapping[str, Any]) -> bool:
    return bool(node["status"]["allocatable"].get("nvidia.com/mig-1g.5gb", "0") != "0")


def test_nothing_is_left_and_a_running_pod_runs_on(installed: RunningLab, bare: Mapping[str, Any]) -> None:
    installed.apply(RunningLab.pod("runs", {"nvidia.com/mig-3g.20gb": 1}))
    installed.kubectl("wait", "pod/runs", "--for=condition=Ready", "--timeout=120s")
    for name in ("large-1", "large-2"):
        installed.apply(RunningLab.pod(name, {"nvidia.com/mig-7g.40gb": 1}))
    installed.eventually(
        lambda: [each for each in installed.get("pods")["items"] if each["spec"].get("schedulingGates")]
    )
    planned = installed.tessera("uninstall", "--dry-run")
    assert "daemonset.apps/tessera-agent in tessera-system deleted (dry run)" in planned
    assert "nothing was changed" in planned
    assert "mutatingwebhookconfiguration" in installed.kubectl("get", "mutatingwebhookconfigurations", "-o", "name")

    told = installed.tessera("uninstall", "--yes")
    assert told.endswith("Tessera is removed\n")
    assert "3g.20gb at start" in told
    assert "used by pod default/runs" in told
    assert "once it is unused: nvidia-smi mig" in told
    assert inventory(installed) == bare
    pods = {each["metadata"]["name"]: each for each in installed.get("pods")["items"]}
    assert pods["runs"]["status"]["phase"] == "Running"
    assert not any(each["spec"].get("schedulingGates") for each in pods.values())
    events = installed.get("events", "--field-selector", "reason=TesseraRemoved")["items"]
    assert {each["involvedObject"]["name"] for each in events} & {"large-1", "large-2"}
    assert installed.tessera("uninstall", "--yes") == "Tessera is not installed in this cluster; nothing to remove\n"
    installed.kubectl("delete", "pods", "--all", "--now")


def test_a_missing_right_stops_it_and_a_program_with_another_account_continues(
    installed: RunningLab, bare: Mapping[str, Any], tmp_path: Path
) -> None:
    """The account may delete what goes before Deployments: policies that guard gates, webhook configurations."""
    installed.kubectl("create", "serviceaccount", "weak", "-n", "default")
    kinds = "mutatingwebhookconfigurations,daemonsets,validatingadmissionpolicies,validatingadmissionpolicybindings"
    rules = ["--verb=get,list,delete", f"--resource={kinds}"]
    installed.kubectl("create", "clusterrole", "weak", *rules)
    installed.kubectl("create", "clusterrolebinding", "weak", "--clusterrole=weak", "--serviceaccount=default:weak")
    config = json.loads(installed.kubectl("config", "view", "--raw", "--flatten", "-o", "json"))
    config["users"][0]["user"] = {"token": installed.kubectl("create", "token", "weak", "-n", "default").strip()}
    file = tmp_path / "weak"
    file.write_text(json.dumps(config))
    told = installed.tessera("uninstall", "--yes", "--kubeconfig", str(file), fails=True)
    assert "deployments" in told
    assert "run the command again with an account that has this right" in told
    assert installed.kubectl("get", "mutatingwebhookconfigurations", "-o", "name") == ""
    for kind in ("clusterrole", "clusterrolebinding"):
        installed.kubectl("delete", kind, "weak")
    installed.kubectl("delete", "serviceaccount", "weak")
    assert "add --yes" in installed.tessera("uninstall", fails=True), "without a terminal"
    document = json.loads(installed.tessera("uninstall", "--yes", "-o", "json"))
    assert document["left"] == []
    deleted = {"name": "deployment.apps/tessera-controller in tessera-system", "result": "deleted", "notes": []}
    assert deleted in document["removed"]
    assert inventory(installed) == bare
    assert installed.kubectl("delete", "-k", "deploy/", "--ignore-not-found") == "", "nothing is left for kubectl"


def helm(cluster: RunningLab, *arguments: str) -> str:
    return cluster.helm(*arguments, "--namespace", "kube-system")


@pytest.fixture
def release(cluster: RunningLab, bare: Mapping[str, Any]) -> RunningLab:
    """The lab with a release of the chart, with drivers by a ClusterPolicy."""
    assert bare
    helm(cluster, "install", "tessera", str(FOLDER), "--set", "tessera.drivers=install")
    cluster.eventually(lambda: all(offers(node) for node in cluster.get("nodes")["items"]))
    return cluster


def test_helm_uninstall_leaves_only_the_definitions(release: RunningLab, bare: Mapping[str, Any]) -> None:
    release.apply(RunningLab.pod("runs", {"nvidia.com/mig-3g.20gb": 1}))
    release.kubectl("wait", "pod/runs", "--for=condition=Ready", "--timeout=120s")
    refused = release.tessera("uninstall", "--yes", fails=True)
    assert 'Helm installed Tessera as release "tessera"; run: helm uninstall tessera -n kube-system' in refused
    assert release.get("clusterpolicies")["items"]
    agents = ("daemonset/tessera-agent", "-n", "tessera-system")
    before = release.get(*agents)["metadata"]["generation"]
    for arguments in ((), ("--dry-run",)):
        refused = release.tessera("install", *arguments, fails=True)
        assert 'Helm installed Tessera as release "tessera"; nothing was changed' in refused
        assert "helm upgrade tessera CHART -n kube-system" in refused
    assert release.get(*agents)["metadata"]["generation"] == before
    helm(release, "uninstall", "tessera")
    found = inventory(release)
    kept = {each for each in found if each.startswith("CustomResourceDefinition")}
    assert {name: each for name, each in found.items() if name not in kept} == dict(bare)
    assert len(kept) >= 3
    assert release.get("pod", "runs")["status"]["phase"] == "Running"
    release.kubectl("delete", "pod", "runs", "--now")
    remove_definitions(release)


@pytest.mark.soak
def test_helm_uninstall_keeps_what_users_have_beside_instaslices(release: RunningLab, bare: Mapping[str, Any]) -> None:
    """`make test` has the namespace that stays for such a pod in :mod:`tests.cluster.test_uninstall`."""
    pod = RunningLab.pod("mine", {})
    release.apply(pod, "instaslice-system")
    helm(release, "uninstall", "tessera")
    assert release.get("pod", "mine", "-n", "instaslice-system")
    release.kubectl("delete", "pod", "mine", "-n", "instaslice-system", "--now")
    release.tessera("uninstall", "--yes")
    assert inventory(release) == bare


def remove_definitions(cluster: RunningLab) -> None:
    """Helm keeps them; the lab has no others."""
    cluster.kubectl("delete", "crd", "--all")


def without_amounts(found: Mapping[str, Any]) -> dict[str, Any]:
    """Kubelet shows amounts of a plugin that ended without a word for five minutes more, none of them allocatable."""
    return {name: each for name, each in found.items() if not name.startswith("amounts ")}


@pytest.mark.soak
def test_a_removal_hook_that_fails_keeps_the_release_until_it_can_finish(
    release: RunningLab, bare: Mapping[str, Any]
) -> None:
    """The nodes' agents cannot answer: their container has another program.

    `make test` has the removal that such agents stop, in :mod:`tests.cluster.test_uninstall`, and Helm's two ways here.
    """
    agents = ("daemonset/tessera-agent", "-n", "tessera-system")
    helm(release, "upgrade", "tessera", str(FOLDER), "--reuse-values", "--set", "tessera.removal.timeoutSeconds=10")
    containers = release.get(*agents)["spec"]["template"]["spec"]["containers"]
    waiting = [{"name": "agent", "image": "busybox", "command": ["sleep", "infinity"]}]
    replace_containers(release, waiting)

    failed = release.run(HELM, "uninstall", "tessera", "--namespace", "kube-system", "--timeout", "150s")
    assert failed.returncode != 0
    assert "job tessera-removal failed" in failed.stderr
    listed = json.loads(helm(release, "list", "--all", "--output", "json"))
    assert [(each["name"], each["status"]) for each in listed] == [("tessera", "uninstalling")]
    told = release.kubectl("logs", "-n", "tessera-system", "job/tessera-removal")
    assert "node/node-1 stays: its agent does not answer" in told
    assert release.get(*agents)

    replace_containers(release, containers)
    helm(release, "uninstall", "tessera")
    remove_definitions(release)
    assert without_amounts(inventory(release)) == without_amounts(bare)
    allocatable = release.get("node", "node-1")["status"]["allocatable"]
    assert {amount for name, amount in allocatable.items() if name.startswith("nvidia.com/")} <= {"0"}


def replace_containers(cluster: RunningLab, containers: Any) -> None:
    """Gives the agents another program."""
    agents = ("daemonset/tessera-agent", "-n", "tessera-system")
    patch = [{"op": "replace", "path": "/spec/template/spec/containers", "value": containers}]
    cluster.kubectl("patch", *agents, "--type=json", "-p", json.dumps(patch))
    cluster.kubectl("rollout", "status", *agents, "--timeout=170s")


def test_a_cluster_of_nvidia_s_operator_is_adopted_and_given_back(cluster: RunningLab, bare: Mapping[str, Any]) -> None:
    """The operator itself does not run here: its objects are there, and its pods follow the nodes' labels."""
    assert bare
    definition = yaml.safe_load((ROOT / "deploy" / "crds" / "clusterpolicies.yaml").read_text(encoding="utf-8"))
    del definition["metadata"]["labels"]
    cluster.apply(definition)
    cluster.kubectl("wait", "--for=condition=Established", "crd/clusterpolicies.nvidia.com")
    policy = {"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "metadata": {"name": "cluster-policy"}}
    cluster.apply(policy | {"spec": {"mig": {"strategy": "single"}}})
    cluster.kubectl("create", "namespace", "gpu-operator")
    for part, image in NVIDIA.items():
        key = f"nvidia.com/gpu.deploy.{part}"
        cluster.kubectl("label", "nodes", "--all", f"{key}=true", "nvidia.com/gpu.present=true", "--overwrite")
        labels = {"app": part}
        pod = {"nodeSelector": {key: "true"}, "containers": [{"name": "c", "image": image, "command": ["run"]}]}
        spec = {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": pod}}
        manifest = {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": part}, "spec": spec}
        cluster.apply(manifest, "gpu-operator")
    cluster.eventually(lambda: len(cluster.get("pods", "-n", "gpu-operator")["items"]) == 2 * len(NVIDIA))
    before = inventory(cluster)

    planned = cluster.tessera("install", "--adopt", "--dry-run")
    assert "label nvidia.com/gpu.deploy.mig-manager=false of node/node-1 configured (dry run)" in planned
    assert inventory(cluster) == before
    assert "leave one of them out" in cluster.tessera("install", "--adopt", "-o", "yaml", fails=True)
    told = cluster.tessera("install", "--adopt")
    assert "clusterpolicy.nvidia.com/cluster-policy configured" in told
    left = {each["metadata"]["labels"]["app"] for each in cluster.get("pods", "-n", "gpu-operator")["items"]}
    assert left == {"dcgm-exporter"}
    agent = cluster.get("daemonset", "tessera-agent", "-n", "tessera-system")
    assert "--mig-strategy=single" in str(agent["spec"]), "a setting of the ClusterPolicy"
    assert cluster.get("clusterpolicy", "cluster-policy")["spec"]["gfd"] == {"enabled": False}

    cluster.tessera("uninstall", "--yes", "--keep-slices")
    assert cluster.get("clusterpolicy", "cluster-policy")["spec"] == {"mig": {"strategy": "single"}}
    labels = cluster.get("node", "node-1")["metadata"]["labels"]
    assert not any(f"nvidia.com/gpu.deploy.{part}" in labels for part in ("mig-manager", "device-plugin"))
    assert labels["nvidia.com/gpu.deploy.dcgm-exporter"] == "true"
