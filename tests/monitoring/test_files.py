"""The files of deploy/monitoring are what the source generates, and fit the pods of deploy/."""

import subprocess
from typing import Any

import pytest
import yaml
from monitoring.files import FOLDER, generate
from monitoring.manifests import (
    COMPONENTS,
    GUARDED,
    NAMESPACE,
    TOKENS,
    metrics_reader,
    pod_monitors,
    prometheus,
    prometheus_rule,
    rules,
)
from tests.monitoring.conftest import Promtool

from tessera.doctor.manifests import install_manifests

FILES = generate()


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_what_the_source_generates(name: str) -> None:
    assert (FOLDER / name).read_text(encoding="utf-8") == FILES[name], "run: python -m monitoring"


def test_there_is_no_other_file() -> None:
    assert {path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*") if path.is_file()} == set(FILES)


def test_the_text_is_always_the_same() -> None:
    assert generate() == FILES


def test_promtool_finds_no_mistake_in_the_rules(promtool: Promtool) -> None:
    promtool.run("check", "rules", "--lint=all", "--lint-fatal", str(FOLDER / "prometheus" / "rules.yaml"))


def test_the_operator_gets_the_same_rules() -> None:
    text = (FOLDER / "prometheus" / "rules.yaml").read_text(encoding="utf-8")
    assert yaml.load(text, yaml.CSafeLoader) == rules() == prometheus_rule()["spec"]


def test_pages_of_alerts_can_lie_elsewhere() -> None:
    urls = [
        rule["annotations"]["runbook_url"]
        for group in rules("https://wiki.example/tessera")["groups"]
        for rule in group["rules"]
        if "alert" in rule
    ]
    assert urls
    assert all(url.startswith("https://wiki.example/tessera/Tessera") for url in urls)


def pods() -> dict[str, Any]:
    """The pod templates of the installation by name."""
    workloads = [each for each in install_manifests() if "template" in each.get("spec", {})]
    return {each["metadata"]["name"]: each for each in workloads}


@pytest.mark.parametrize("monitor", pod_monitors(), ids=lambda monitor: monitor["metadata"]["name"])
def test_a_pod_monitor_selects_pods_of_the_installation_and_their_port(monitor: dict[str, Any]) -> None:
    workload = pods()[monitor["metadata"]["name"]]
    assert workload["metadata"]["namespace"] == monitor["metadata"]["namespace"] == NAMESPACE
    template = workload["spec"]["template"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    ports = [port["name"] for each in template["spec"]["containers"] for port in each["ports"]]
    assert [each["port"] for each in monitor["spec"]["podMetricsEndpoints"]] == ["http"]
    assert "http" in ports


def test_each_component_is_scraped_with_and_without_the_operator() -> None:
    without_metrics = {"tessera-mps"}  # starts MPS daemons, and serves no metrics
    assert set(COMPONENTS) == set(pods()) - without_metrics
    assert [each["metadata"]["name"] for each in pod_monitors()] == list(COMPONENTS)
    assert [each["job_name"] for each in prometheus()["scrape_configs"]] == list(COMPONENTS)


def test_kubectl_renders_rules_and_monitors() -> None:
    command = ["kubectl", "kustomize", str(FOLDER / "prometheus")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    kinds = [each["kind"] for each in yaml.load_all(done.stdout, yaml.CSafeLoader)]
    account = ["ClusterRoleBinding", "Secret", "ServiceAccount"]
    assert sorted(kinds) == sorted([*account, "PodMonitor", "PodMonitor", "PodMonitor", "PrometheusRule"])


def test_the_monitors_show_a_token_of_an_account_that_may_only_read_metrics() -> None:
    account, secret, binding = metrics_reader()
    for monitor in pod_monitors():
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        shown = endpoint.get("authorization", {}).get("credentials")
        wanted = {"name": secret["metadata"]["name"], "key": "token"}
        assert shown == (wanted if monitor["metadata"]["name"] in GUARDED else None)
    assert secret["metadata"]["annotations"] == {"kubernetes.io/service-account.name": account["metadata"]["name"]}
    (role,) = (each for each in install_manifests() if each["metadata"]["name"] == binding["roleRef"]["name"])
    assert role["rules"] == [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}]


def test_a_prometheus_without_the_operator_shows_tokens_that_only_tessera_accepts() -> None:
    """The volume that the page has makes the files that the configuration names, each for its component's audience."""
    page = (FOLDER.parents[1] / "docs" / "see-it.md").read_text(encoding="utf-8")
    (volume,) = yaml.safe_load(page.partition("```yaml\nvolumes:")[2].partition("```")[0])
    made = {
        f"{TOKENS}/{each['path']}": each["audience"] for (each,) in map(dict.values, volume["projected"]["sources"])
    }
    shown = {
        job["job_name"]: job.get("authorization", {}).get("credentials_file") for job in prometheus()["scrape_configs"]
    }
    assert {name: made[file] for name, file in shown.items() if file} == GUARDED
