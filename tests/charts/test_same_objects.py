"""The chart, and the OLM bundle, make the objects of ``tessera install``, for each choice that they have.

Choices that kustomize has too are compared in :mod:`tests.charts.test_every_form`.
"""

import os
import shlex
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from monitoring.alerts import ALERTS
from monitoring.manifests import prometheus_rule
from tests.charts.conftest import Helm, Key, Manifest, bundled, by_name, install, is_hook, leaves, of_release

from tessera.cli.install.drivers import parse_choice
from tessera.cli.install.manifests import drivers_in_charge
from tessera.cli.install.operator_process import operated_objects
from tessera.cli.install.operator_settings import read_choices
from tessera.cli.install.settings import read_driver_objects

ROOT = Path(__file__).parents[2]
SEED = yaml.load((ROOT / "examples" / "sharing" / "values.yaml").read_text(encoding="utf-8"), yaml.CSafeLoader)
PROFILES = {"slice-4": "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}\n"}
LAYOUTS = {"config.yaml": "version: v1\nmig-configs: {all-disabled: [{devices: all, mig-enabled: false}]}\n"}
PEM = "-----BEGIN CERTIFICATE-----\n"
#: Kinds of NVIDIA's objects, which the chart's Job applies.
BY_JOB = {"ClusterPolicy", "NVIDIADriver"}

#: Options of the chart, and the folder with the same manifests.
MONITORING = [
    ({"podMonitors": True, "prometheusRule": True}, "deploy/monitoring/prometheus"),
    ({"dashboards": True}, "deploy/monitoring/grafana"),
]

DIGEST = f"sha256:{'a' * 64}"

#: NVIDIA's values, Tessera's values, arguments of tessera install.
CASES: Mapping[str, tuple[Mapping[str, Any] | None, Mapping[str, Any], Sequence[str]]] = {
    "seed": (SEED, {}, []),
    "host drivers": (SEED, {"drivers": "host"}, ["--no-drivers"]),
    "config": (
        {
            "mig": {"strategy": "mixed"},
            "devicePlugin": {"config": {"create": True, "name": "slices", "default": "slice-4", "data": PROFILES}},
            "migManager": {"config": {"create": True, "name": "layouts", "default": "all-disabled", "data": LAYOUTS}},
        },
        {},
        [],
    ),
    "variables": (
        {
            "devicePlugin": {
                "mps": {"root": "/srv/mps/"},
                "env": [
                    {"name": "MIG_STRATEGY", "value": "none"},
                    {"name": "DEVICE_LIST_STRATEGY", "value": "cdi-cri, cdi-annotations,cdi-cri"},
                    {"name": "DEVICE_ID_STRATEGY", "value": "index"},
                    {"name": "PASS_DEVICE_SPECS", "value": "t"},
                    {"name": "DP_DISABLE_HEALTHCHECKS", "value": "13,31"},
                    {"name": "DP_ENABLE_HEALTHCHECKS", "value": ""},
                ],
            },
            "migManager": {
                "enabled": False,
                "config": {"name": "ignored"},
                "env": [{"name": "WITH_REBOOT", "value": "true"}],
            },
            "hostPaths": {"kubeletRootDir": "/srv/kubelet/"},
        },
        {},
        [],
    ),
    "drivers elsewhere": (
        {
            "driver": {"version": 550, "imagePullSecrets": ["a-secret"], "manager": {"imagePullSecrets": ["b-secret"]}},
            "toolkit": {"imagePullSecrets": ["a-secret"]},
            "hostPaths": {"driverInstallDir": "/srv/driver/"},
        },
        {"driverPullSecrets": ["c-secret"]},
        ["--pull-secret", "c-secret"],
    ),
    "drivers asked for": ({"mig": {"strategy": "mixed"}}, {"drivers": "install"}, ["--drivers"]),
    "driver by object": (
        {"driver": {"nvidiaDriverCRD": {"enabled": True}, "version": "550.54.14"}, "cdi": {"nriPluginEnabled": True}},
        {},
        [],
    ),
    "not deployed": ({"driver": {"version": "550"}, "clusterPolicy": {"deployCR": False}}, {}, []),
    "nulls": ({"mig": None, "devicePlugin": {"config": None, "env": None}, "driver": {"version": None}}, {}, []),
    "agent": (
        None,
        {
            "agent": {
                "migEvict": True, "memoryLimits": "kill", "simulate": "2xA100-40GB",
            },
        },
        [
            *("--mig-evict", "--memory-limits", "kill", "--simulate", "2xA100-40GB"),
        ],
    ),
    "open metrics": (None, {"monitoring": {"metricsAccess": "open"}}, ["--metrics-access", "open"]),
    "evicting memory": (None, {"agent": {"memoryLimits": "evict"}}, ["--memory-limits", "evict"]),
    "controller": (
        None,
        {
            "controller": {
                "replaceFailed": 2, "reservations": "always", "preempt": True,
                "moves": "evict", "movesPerHour": 7, "scaleUp": "off",
            },
            "registries": {"plainHttp": ["registry.local:5000", "*"]},
            "startup": {"taints": ["example.com/gpu"], "deadline": "600s"},
            "builds": {
                "buildahImage": "registry.local/buildah:v1",
                "baseImages": {"rhel9": "registry.local/ubi9:1", "ubuntu22.04": "registry.local/ubuntu:22.04"},
                "dtkImages": {"5.14.0": "registry.local/dtk:1"},
                "downloads": "https://mirror.local/tesla",
                "caConfigMap": "authorities",
                "tlsVerify": False,
                "nvswitch": False,
            },
        },
        [
            *("--replace-failed", "2", "--plain-http", "registry.local:5000", "--plain-http", "*"),
            *("--startup-taint", "example.com/gpu", "--startup-deadline", "10m"),
            *("--reservations", "always", "--preempt", "--moves", "evict", "--moves-per-hour", "7"),
            *("--scale-up", "off"),
            *("--buildah-image", "registry.local/buildah:v1", "--build-base-image", "rhel9=registry.local/ubi9:1"),
            *("--build-base-image", "ubuntu22.04=registry.local/ubuntu:22.04"),
            *("--build-dtk-image", "5.14.0=registry.local/dtk:1", "--build-downloads", "https://mirror.local/tesla"),
            *("--build-ca-config-map", "authorities", "--no-build-tls-verify", "--no-build-nvswitch"),
        ],
    ),
    "dashboard": (
        None,
        {"dashboard": {"enabled": True, "origins": ["https://gpu.example.com"], "withoutToken": "hide-names"}},
        [
            *("--dashboard", "--dashboard-origin", "https://gpu.example.com"),
            *("--dashboard-without-token", "hide-names"),
        ],
    ),
    "device access": (
        None,
        {"deviceAccess": {"action": "warn", "namespaces": ["monitoring", "kube-system"]}},
        ["--device-access", "warn", "--device-access-namespace", "monitoring"],
    ),
    "api servers": (
        None,
        {"networkPolicy": {"apiServers": ["192.0.2.0/28", "2001:db8::/64"]}},
        ["--api-server", "192.0.2.0/28", "--api-server", "2001:db8::/64"],
    ),
    "cert-manager's issuer": (
        None,
        {"webhook": {"certManager": {"enabled": True, "issuer": {"kind": "Issuer", "name": "corporate"}}}},
        ["--certificate", "cert-manager", "--issuer", "Issuer/corporate"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_chart_and_bundle_make_the_objects_of_tessera_install(case: str, helm: Helm, tmp_path: Path) -> None:
    nvidia, own, arguments = CASES[case]
    placed = ["--namespace", "kube-system"] if nvidia is not None else []
    installed = install(tmp_path, *placed, *arguments, values=nvidia)
    settings = {"options": shlex.join([*placed, *arguments])}
    if nvidia is not None:
        settings["values.yaml"] = yaml.safe_dump(dict(nvidia))
    chart = of_release(helm.template({**(nvidia or {}), "tessera": own}, "kube-system"))
    by_hand = [each for each in installed if each["kind"] not in BY_JOB]
    compare(by_name(chart), by_name(by_hand))
    compare(by_name([*bundled(), *operated_objects(read_choices(settings, ""))]), by_name(installed))


def compare(found: Mapping[Key, Manifest], wanted: Mapping[Key, Manifest]) -> None:
    """Fails with the first object that differs."""
    assert found.keys() == wanted.keys()
    for key, manifest in wanted.items():
        assert sorted(leaves(found[key])) == sorted(leaves(manifest)), key


@pytest.mark.parametrize("case", CASES)
def test_the_job_applies_the_same_driver_objects(case: str, helm: Helm, tmp_path: Path) -> None:
    nvidia, own, arguments = CASES[case]
    rendered = helm.template({**(nvidia or {}), "tessera": own}, "kube-system")
    hooks = {each["kind"]: each for each in rendered if is_hook(each, "post-install")}
    wanted = [each for each in install(tmp_path, *arguments, values=nvidia) if each["kind"] in BY_JOB]
    if not hooks:
        assert not wanted
        return
    (container,) = hooks["Job"]["spec"]["template"]["spec"]["containers"]
    choice = parse_choice(container["args"])
    text = hooks["ConfigMap"]["data"]["values.yaml"] if choice.config_map else None
    found, _ = read_driver_objects(None, choice.drivers, text=text)
    assert list(drivers_in_charge(found) if choice.drivers else found) == wanted


@pytest.mark.parametrize(("options", "folder"), MONITORING)
def test_monitoring_is_that_of_the_manifests(options: Mapping[str, Any], folder: str, helm: Helm) -> None:
    plain = by_name(helm.template({}, "kube-system"))
    chart = by_name(helm.template({"tessera": {"monitoring": options}}, "kube-system"))
    done = subprocess.run(["kubectl", "kustomize", str(ROOT / folder)], capture_output=True, text=True, check=True)
    manifests = by_name(list(yaml.load_all(done.stdout, yaml.CSafeLoader)))
    assert chart.keys() - plain.keys() == manifests.keys()
    for key, manifest in manifests.items():
        assert sorted(leaves(chart[key])) == sorted(leaves(manifest)), key


def test_annotations_let_a_prometheus_find_the_pods(helm: Helm, tmp_path: Path) -> None:
    chart = helm.template({"tessera": {"monitoring": {"podAnnotations": True}}}, "kube-system")
    deploy = os.path.relpath(ROOT / "deploy", tmp_path)
    overlay = {"resources": [deploy], "components": [f"{deploy}/monitoring/annotations"]}
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(overlay), encoding="utf-8")
    done = subprocess.run(["kubectl", "kustomize", str(tmp_path)], capture_output=True, text=True, check=True)
    assert scraped(chart) == scraped(list(yaml.load_all(done.stdout, yaml.CSafeLoader)))
    assert scraped(chart) == {"tessera-agent": "8082", "tessera-controller": "8081", "tessera-webhook": "8081"}
    assert scraped(helm.template({}, "kube-system")) == {}


def scraped(objects: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """The annotated port of each workload whose pods are to be scraped."""
    templates = {
        each["metadata"]["name"]: each["spec"]["template"]["metadata"].get("annotations") or {}
        for each in objects
        if each["kind"] in {"Deployment", "DaemonSet"}
    }
    return {
        name: annotations["prometheus.io/port"]
        for name, annotations in templates.items()
        if annotations.get("prometheus.io/scrape") == "true"
    }


def test_labels_let_an_operator_find_the_monitors(helm: Helm) -> None:
    monitoring = {"podMonitors": True, "prometheusRule": True, "labels": {"release": "stack"}}
    found = helm.template({"tessera": {"monitoring": monitoring}}, "kube-system")
    chosen = [each["metadata"]["labels"] for each in found if each["apiVersion"].startswith("monitoring.")]
    assert len(chosen) == 4
    assert {each["release"] for each in chosen} == {"stack"}


@pytest.mark.parametrize("folder", ["https://wiki.example/gpu: {a}", "https://wiki.example/gpu: {a}/"])
def test_the_alerts_of_the_chart_link_to_a_copy_of_their_pages(helm: Helm, folder: str) -> None:
    monitoring = {"prometheusRule": True, "runbooks": folder}
    found = helm.template({"tessera": {"monitoring": monitoring}}, "kube-system")
    (rule,) = (each for each in found if each["kind"] == "PrometheusRule")
    assert rule["spec"] == prometheus_rule("https://wiki.example/gpu: {a}")["spec"]


def test_degrees_of_the_values_are_those_of_the_alert(helm: Helm) -> None:
    monitoring = {"prometheusRule": True, "hotCelsius": 91, "hotMemoryCelsius": 99}
    found = helm.template({"tessera": {"monitoring": monitoring}}, "kube-system")
    (groups,) = (each["spec"]["groups"] for each in found if each["kind"] == "PrometheusRule")
    (expr,) = (rule["expr"] for group in groups for rule in group["rules"] if rule.get("alert") == "TesseraGpuHot")
    ours = {each.name: each.expr for each in ALERTS}["TesseraGpuHot"]
    assert expr == ours.replace("> 85", "> 91").replace("> 95", "> 99")


def test_no_hook_makes_an_object_in_the_namespace_that_the_removal_deletes(helm: Helm) -> None:
    """Else helm uninstall could not be repeated: nothing can be made in a namespace that ends or is gone."""
    hooks = [each for each in helm.template({}, "kube-system") if is_hook(each, "pre-delete")]
    assert {each["metadata"]["namespace"] for each in hooks if "namespace" in each["metadata"]} == {"tessera-system"}
