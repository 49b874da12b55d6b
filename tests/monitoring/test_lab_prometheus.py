"""A real Prometheus scrapes the pods of a running lab, with the configuration and the rules that ship.

Debian's Prometheus is built without the discovery of Kubernetes. So the test lists the pods, and gives each port with
the labels that the discovery would give; the configuration's own rules choose among them.
"""

import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from monitoring.alerts import ALERTS, Alert
from monitoring.boards import BOARDS
from monitoring.manifests import COMPONENTS, GUARDED, metrics_reader, prometheus, rules
from tests.monitoring.prometheus_server import Prometheus, filled
from tests.support.command_line import start_lab
from tests.support.ports import free_port
from tests.support.running_lab import RunningLab

from tessera_lab.daemon.lab_folder import send_request, stop
from tessera_lab.experiments.clusters import KERNEL, OS_TAG

BUSY = {"load": {"low": 0.6, "high": 0.9}, "memory": "40%"}
SHARE = {"load": 0.2, "memory": "10%"}
SCENARIO = {
    "about": "Pods on a slice, a share and a whole card compute; one pod waits for room, one for a node to be made.",
    "pods": [
        {"name": "train", "namespace": "research", "request": {"nvidia.com/mig-3g.40gb": 1}, "use": BUSY},
        {"name": "share", "namespace": "production", "request": {"nvidia.com/gpu.shared": 1}, "use": SHARE},
        {"name": "whole", "namespace": "production", "request": {"nvidia.com/gpu": 1}, "count": 2, "use": BUSY},
        {"name": "large", "namespace": "research", "request": {"nvidia.com/mig-7g.80gb": 1}},
    ],
}
#: The kernel that the nodes run is also announced as their next one; the lab's registries have a driver for it.
NEXT_KERNELS = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "driver-next-kernels", "namespace": "tessera-system"},
    "data": {OS_TAG: f"{KERNEL}\n"},
}


def targets(lab: RunningLab) -> Sequence[Mapping[str, Any]]:
    """Each port of each pod of Tessera, with the labels of Prometheus's discovery; only of pods that are ready."""
    return [
        {
            "targets": [f"{pod['status']['podIP']}:{port['containerPort']}"],
            "labels": {
                "__meta_kubernetes_pod_label_app_kubernetes_io_name": pod["metadata"]["labels"][
                    "app.kubernetes.io/name"
                ],
                "__meta_kubernetes_pod_container_port_name": port["name"],
                "__meta_kubernetes_pod_node_name": pod["spec"]["nodeName"],
            },
        }
        for pod in lab.get("pods", "-n", "tessera-system")["items"]
        if is_ready(pod)  # the agent of a node that has just joined may have no address yet
        for container in pod["spec"]["containers"]
        for port in container.get("ports", ())
    ]


def is_ready(pod: Mapping[str, Any]) -> bool:
    return any(each["type"] == "Ready" and each["status"] == "True" for each in pod["status"].get("conditions", ()))


def configuration(lab: RunningLab, folder: Path) -> dict[str, Any]:
    """The configuration that ships, with the lab's pods for the discovery, and tokens as kubelet would make them."""
    for each in metrics_reader():
        lab.apply(dict(each))
    made = json.loads(json.dumps(prometheus()))
    made["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    for job in made["scrape_configs"]:
        del job["kubernetes_sd_configs"]
        job["static_configs"] = targets(lab)
        if "authorization" in job:
            token = folder / Path(job["authorization"]["credentials_file"]).name
            token.write_text(lab.page_token("tessera-metrics", "--audience", token.name), encoding="utf-8")
            job["authorization"] = {"credentials_file": str(token)}
    return dict(made)


def install_drivers(lab: RunningLab) -> None:
    """Requests drivers, announces the next kernel, and runs the scenario once all nodes have their cards."""
    lab.apply(NEXT_KERNELS)
    lab.kubectl("apply", "-f", "examples/drivers/cluster-policy.yaml")
    lab.kubectl("wait", "clusterpolicy/cluster-policy", "--for=condition=Ready", "--timeout=180s")
    send_request(lab.folder, "scenario", json.dumps({"name": "busy", "text": json.dumps(SCENARIO)}))


@pytest.fixture(scope="module")
def lab() -> Iterator[RunningLab]:
    top = Path(tempfile.mkdtemp(prefix="tl-", dir="/tmp"))
    try:
        nodes = ("--nodes", "1xH100-80GB,1xH100-80GB,1xT4", "--group", "new=1xT4:0-1", "--mig-config", "")
        running = RunningLab(start_lab(top / "lab", [*nodes, "--drivers", "--virtual-time"]))
        running.kubectl("label", "node", "node-1", "nvidia.com/mig.config=dynamic")
        running.kubectl("label", "node", "node-3", "nvidia.com/device-plugin.config=slice-4")
        for each in ("daemonset/tessera-agent", "deployment/tessera-controller", "deployment/tessera-webhook"):
            running.kubectl("rollout", "status", "-n", "tessera-system", each, "--timeout=180s")
        yield running
    finally:
        stop(top / "lab")
        shutil.rmtree(top, ignore_errors=True)


@pytest.fixture(scope="module")
def server(lab: RunningLab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    folder = tmp_path_factory.mktemp("prometheus")
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(configuration(lab, folder)), encoding="utf-8")
    (folder / "rules.yaml").write_text(yaml.safe_dump(rules()), encoding="utf-8")
    started = Prometheus(folder, free_port())
    try:
        started.wait_for("count(up == 1) == 6")
        install_drivers(lab)
        started.wait_for("tessera:namespace_gpu_wasted:rate5m and on () (count(tessera_pod_gpu_busy_ratio) == 3)")
        started.wait_for("count(tessera:gpu_energy_joules:rate5m) == 3 and on () (tessera_pods_waiting > 0)")
        yield started
    finally:
        started.close()


def test_every_target_of_every_component_is_read(server: Prometheus) -> None:
    assert {each["metric"]["job"] for each in server.query("up == 1")} == set(COMPONENTS)
    assert server.query("up == 0") == []


def test_without_its_token_only_metrics_that_name_nobody_are_read(lab: RunningLab) -> None:
    asked = set()
    for each in targets(lab):
        labels = each["labels"]
        if labels["__meta_kubernetes_pod_container_port_name"] == "http":
            status, text = lab.read_page(f"http://{each['targets'][0]}/metrics")
            name = labels["__meta_kubernetes_pod_label_app_kubernetes_io_name"]
            asked.add(name)
            assert status == (401 if name in GUARDED else 200), name
            assert "pod=" not in text
    assert asked == set(COMPONENTS)


def test_each_query_of_each_board_has_data_on_the_lab(server: Prometheus) -> None:
    for board in BOARDS:
        for panel in (panel for _, panels in board.rows for panel in panels):
            for query in panel.queries:
                expr = filled(query.expr)
                if query.absent:
                    assert not server.query(expr), f"{board.uid}: {panel.title} has data: {expr}"
                else:
                    server.wait_for(expr)  # a quantile is NaN where nothing happened in the last minute


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_no_alert_is_about_the_healthy_cards_of_the_lab(server: Prometheus, alert: Alert) -> None:
    assert not server.query(alert.expr)


def test_series_of_pods_name_the_pods_of_the_lab(server: Prometheus) -> None:
    held = server.query("tessera_pod_gpu_share_ratio")
    found = {each["metric"]["kind"]: (each["metric"]["namespace"], each["metric"]["node"]) for each in held}
    assert found == {
        "slice": ("research", "node-1"),
        "whole": ("production", "node-2"),
        "time-slicing": ("production", "node-3"),
    }


def test_used_memory_by_dcgm_exporters_names_is_that_of_the_pods(server: Prometheus) -> None:
    """A rule for dcgm-exporter, on a slice on demand, a whole card and a share."""
    rule = "sum by (Hostname) (DCGM_FI_DEV_FB_USED) * 1048576"
    server.wait_for("count(DCGM_FI_DEV_FB_USED > 0) == 3")
    used, held = server.query(rule), server.query("sum by (node) (tessera_pod_gpu_memory_used_bytes)")
    by_node = {each["metric"]["node"]: float(each["value"][1]) for each in held}
    assert {each["metric"]["Hostname"]: float(each["value"][1]) for each in used} == pytest.approx(by_node)
    named = server.query(
        'DCGM_FI_DEV_FB_USED{exported_namespace="research", exported_pod!="", GPU_I_PROFILE="3g.40gb"}'
    )
    assert [each["metric"]["exported_pod"] == each["metric"]["pod"] for each in named] == [True]


def test_the_waiting_pod_is_counted_with_its_reason(server: Prometheus) -> None:
    waiting = server.query("tessera_pods_waiting > 0")
    assert [float(each["value"][1]) for each in waiting] == [1.0]
