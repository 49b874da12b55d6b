"""The chart on a running lab, by the real Helm, as the article installs NVIDIA's operator."""

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml
from charts.files import FOLDER
from tests.driver.registry.programs import registry
from tests.support.helm_program import HELM
from tests.support.running_lab import ROOT, RunningLab

from tessera.gpu_operator.keys import UNKNOWN
from tessera.gpu_operator.settings_reader import read_settings

SHARING = ROOT / "examples" / "sharing"
ARTICLE = yaml.safe_load((SHARING / "values.yaml").read_text(encoding="utf-8"))
AGENTS = ("daemonset/tessera-agent", "-n", "tessera-system")


@pytest.fixture(scope="module")
def lab_arguments() -> list[str]:
    return ["--no-tessera", "--mig-config", "", "--nodes", "4xA100-40GB"]


def helm(cluster: RunningLab, *arguments: str) -> str:
    return cluster.helm(*arguments, "--namespace", "kube-system")


def offered(cluster: RunningLab) -> dict[str, str]:
    allocatable: dict[str, str] = cluster.get("node", "node-1")["status"]["allocatable"]
    return allocatable


def own_profiles(cluster: RunningLab) -> dict[str, str]:
    """The profiles that the chart brings."""
    found: dict[str, str] = cluster.get("configmap", "sharing-profiles", "-n", "tessera-system").get("data") or {}
    return found


def notices(cluster: RunningLab, folder: Path, values: Mapping[str, Any]) -> list[str]:
    """The lines of the chart's notes about settings without effect."""
    file = folder / "values.yaml"
    file.write_text(yaml.safe_dump(dict(values)), encoding="utf-8")
    notes = helm(cluster, "install", "trial", str(FOLDER), "--dry-run=client", "--values", str(file))
    return sorted(line.strip() for line in notes.partition("\nNOTES:\n")[2].splitlines() if ": no effect" in line)


VALUES: Mapping[str, Mapping[str, Any]] = {
    "nothing": {},
    "article": ARTICLE,
    "components": {"dcgmExporter": {"enabled": True}, "dcgm": {"enabled": False, "image": "x"}},
    "machines": {"vgpuManager": {"image": "x"}},
    "machines asked for": {"vgpuManager": {"image": "x"}, "sandboxWorkloads": {"enabled": True}},
    "agents": {
        "cdi": {"enabled": False},
        "gfd": {"enabled": False, "env": [{"name": "A", "value": "b"}], "discoveryIntervalSeconds": 3},
        "devicePlugin": {
            "enabled": False,
            "image": "x",
            "args": ["--y"],
            "config": {"default": "z", "data": {"z": "version: v1"}},
            "env": [{"name": "MOFED_ENABLED"}, {"name": "ELSE"}, {"name": "MIG_STRATEGY", "value": "none"}],
        },
        "mig": {"strategy": "mixed"},
        "migManager": {"gpuClientsConfig": {"name": "x"}, "env": [{"name": "WITH_SHUTDOWN_HOST_GPU_CLIENTS"}]},
        "hostPaths": {"rootFS": "/host", "driverInstallDir": "/srv/driver"},
    },
    "unnamed driver": {
        "driver": {"rdma": {"enabled": True}},
        "toolkit": {"version": "v1"},
        "daemonsets": {"labels": {"a": "b"}},
    },
    "not deployed": {"clusterPolicy": {"deployCR": False}, "driver": {"version": "550"}},
    "ignored": {
        "migManger": {},
        "tolerations": [{}],
        "gds": "on",
        "COMPUTED VALUES": None,
        "mig": {"strategy": "mixed", "strategie": "none"},
        "devicePlugin": {"config": "a", "enabled": "false"},
    },
    "driver": {
        "driver": {"version": "550", "livenessProbe": {"periodSeconds": 3}, "nodeSelector": {"a": "b"}},
        "toolkit": {"resources": {"limits": {"cpu": 1}}},
        "daemonsets": {"podSecurityContext": {"runAsUser": 1}},
    },
}  # fmt: skip


def together(*names: str) -> Mapping[str, Any]:
    """Cases that set different keys, as one."""
    merged = {key: value for name in names for key, value in VALUES[name].items()}
    assert len(merged) == sum(len(VALUES[name]) for name in names)
    return merged


#: Helm takes half a second of a core each time.
NOTED: Mapping[str, Mapping[str, Any]] = {
    **{name: VALUES[name] for name in ("nothing", "article", "not deployed")},
    "most": together("components", "machines", "agents", "unnamed driver"),
    "others": together("machines asked for", "ignored", "driver"),
}


@pytest.mark.parametrize("case", NOTED)
def test_the_notes_tell_what_has_no_effect(case: str, cluster: RunningLab, tmp_path: Path) -> None:
    values = NOTED[case]
    wanted = sorted(str(each) for each in read_settings(values).notices if each.text.startswith("no effect"))
    found = notices(cluster, tmp_path, values)
    # Helm cannot say which place was meant.
    advised = [[line.partition(f"{UNKNOWN};")[0] for line in lines] for lines in (found, wanted)]
    assert advised[0] == advised[1]
    assert all("tessera config check FILE" in line for line in found if UNKNOWN in line)


def test_the_notes_tell_that_helms_own_namespace_lacks_its_label(cluster: RunningLab) -> None:
    def notes(*more: str) -> str:
        dry = ("install", "trial", str(FOLDER), "--dry-run=client", "--namespace", "tessera-system", *more)
        return cluster.helm(*dry).partition("\nNOTES:\n")[2]

    label = "kubectl label namespace tessera-system pod-security.kubernetes.io/enforce=privileged"
    assert label in notes()
    assert label not in notes("--set", "tessera.podSecurity=false")


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sequence[str]]:
    """The chart in a registry, as an argument of Helm and its options."""
    folder = tmp_path_factory.mktemp("chart")
    subprocess.run([HELM, "package", str(FOLDER), "--destination", str(folder)], check=True, capture_output=True)
    (package,) = folder.glob("tessera-*.tgz")
    with registry(folder / "storage") as running:
        push = [HELM, "push", str(package), f"oci://{running.host}/charts", "--plain-http"]
        subprocess.run(push, check=True, capture_output=True)
        yield f"oci://{running.host}/charts/tessera", "--version", version("tessera-gpu"), "--plain-http"


def test_the_article_is_followed_by_helm(cluster: RunningLab, published: Sequence[str]) -> None:
    chart = ("upgrade", "-i", "tessera", *published, "--values", str(SHARING / "values.yaml"))
    notes = helm(cluster, *chart)
    assert "nvidia-time-slicing-config" in notes  # named by the values, and not there yet
    for name in ("time-slicing", "mig"):
        cluster.kubectl("apply", "-f", str(SHARING / f"{name}-config.yaml"))
    cluster.kubectl("rollout", "status", *AGENTS, "--timeout=180s")

    # Those of the article win over the profiles that the chart brings, which stay as somebody edited them.
    assert cluster.eventually(lambda: own_profiles(cluster).get("slice-4"))
    edit = ("--type=merge", "-p", '{"data": {"slice-4": "version: v1"}}')
    cluster.kubectl("patch", "configmap", "sharing-profiles", "-n", "tessera-system", *edit)

    (policy,) = cluster.get("clusterpolicy")["items"]
    assert policy["spec"]["driver"]["version"] == ARTICLE["driver"]["version"]
    assert cluster.get("jobs", "-n", "tessera-system")["items"] == []

    cluster.kubectl("label", "node", "node-1", "nvidia.com/device-plugin.config=slice-4")
    assert cluster.eventually(lambda: offered(cluster).get("nvidia.com/gpu.shared", "0") != "0")
    assert offered(cluster)["nvidia.com/gpu.shared"] == "16"

    changed = ("--set", "tessera.agent.memoryLimits=warn", "--set", "tessera.drivers=host")
    assert "not in namespace" not in helm(cluster, *chart, *changed)
    assert "--memory-limits=warn" in str(cluster.get(*AGENTS)["spec"])
    assert cluster.get("clusterpolicy")["items"] == []
    helm(cluster, "rollback", "tessera", "1")
    (restored,) = cluster.get("clusterpolicy")["items"]
    assert restored["spec"] == policy["spec"]
    assert "--memory-limits=warn" not in str(cluster.get(*AGENTS)["spec"])
    cluster.kubectl("rollout", "status", *AGENTS, "--timeout=180s")
    assert offered(cluster)["nvidia.com/gpu.shared"] == "16"
    assert own_profiles(cluster)["slice-4"] == "version: v1"

    assert "instaslices.inference.redhat.com" in helm(cluster, "uninstall", "tessera")
    definitions = {each["metadata"]["name"] for each in cluster.get("crd")["items"]}
    assert definitions == {
        "instaslices.inference.redhat.com",
        "clusterpolicies.nvidia.com",
        "nvidiadrivers.nvidia.com",
        "queues.tessera.dev",
    }
    assert "helm.sh" not in cluster.kubectl("get", "clusterroles,clusterrolebindings", "-o", "yaml")

    # What Helm left belongs to the release before, until the next one takes it.
    again = ("install", "two", str(FOLDER), "--namespace", "gpu", "--create-namespace", "--wait")
    assert "cannot be imported into the current release" in cluster.helm(*again, fails=True)
    cluster.helm(*again, "--take-ownership")
    definition = cluster.get("customresourcedefinition", "instaslices.inference.redhat.com")
    assert definition["metadata"]["annotations"]["meta.helm.sh/release-namespace"] == "gpu"
    assert "2 of 2 pods ready" in cluster.tessera("version")
