"""Monitoring, and the hooks of the chart: what no other form has, or what is compared with a folder of manifests."""

import os
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from monitoring.alerts import ALERTS
from monitoring.manifests import prometheus_rule
from tests.charts.conftest import Helm, by_name, is_hook, leaves
from tests.support.rendered_yaml import read_documents

ROOT = Path(__file__).parents[2]
#: Options of the chart, and the folder with the same manifests.
MONITORING = [
    ({"podMonitors": True, "prometheusRule": True}, "deploy/monitoring/prometheus"),
    ({"dashboards": True}, "deploy/monitoring/grafana"),
]


@pytest.mark.parametrize(("options", "folder"), MONITORING)
def test_monitoring_is_that_of_the_manifests(options: Mapping[str, Any], folder: str, helm: Helm) -> None:
    plain = by_name(helm.template({}, "kube-system"))
    chart = by_name(helm.template({"tessera": {"monitoring": options}}, "kube-system"))
    done = subprocess.run(["kubectl", "kustomize", str(ROOT / folder)], capture_output=True, text=True, check=True)
    manifests = by_name(read_documents(done.stdout))
    assert chart.keys() - plain.keys() == manifests.keys()
    for key, manifest in manifests.items():
        assert sorted(leaves(chart[key])) == sorted(leaves(manifest)), key


def test_annotations_let_a_prometheus_find_the_pods(helm: Helm, tmp_path: Path) -> None:
    chart = helm.template({"tessera": {"monitoring": {"podAnnotations": True}}}, "kube-system")
    deploy = os.path.relpath(ROOT / "deploy", tmp_path)
    overlay = {"resources": [deploy], "components": [f"{deploy}/monitoring/annotations"]}
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(overlay), encoding="utf-8")
    done = subprocess.run(["kubectl", "kustomize", str(tmp_path)], capture_output=True, text=True, check=True)
    assert scraped(chart) == scraped(read_documents(done.stdout))
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
