"""``tessera autoscaler`` against a cluster, through its kubeconfig: records in, advice out, and the advice applied."""

import json
from collections.abc import Iterator

import pytest
import yaml
from tests.support.running_lab import RunningLab

from tessera.provisioning.history import ProvisioningHistory
from tessera.provisioning.milestones import Milestone, ProvisioningRecord

SCALER = {
    "apiVersion": "autoscaling.openshift.io/v1",
    "kind": "ClusterAutoscaler",
    "metadata": {"name": "default"},
    "spec": {
        "podPriorityThreshold": -10,
        "maxNodeProvisionTime": "5m",
        "scaleDown": {"enabled": True, "delayAfterAdd": "10m", "delayAfterDelete": "5m", "unneededTime": "5m"},
    },
}
ANYTHING = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
DEFINITION = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "clusterautoscalers.autoscaling.openshift.io"},
    "spec": {
        "group": "autoscaling.openshift.io",
        "scope": "Cluster",
        "names": {
            "kind": "ClusterAutoscaler",
            "plural": "clusterautoscalers",
            "singular": "clusterautoscaler",
            "listKind": "ClusterAutoscalerList",
        },
        "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": ANYTHING}}],
    },
}


@pytest.fixture(scope="module")
def lab_arguments() -> list[str]:
    return ["--no-tessera", "--nodes", "0"]


def book() -> dict[str, str]:
    """Twenty nodes whose cards came 549 s and a little more after the request."""
    kept = ProvisioningHistory(100)
    for number in range(20):
        begun = 1_800_000_000.0 + 86_400 * number
        steps = {Milestone.REQUESTED: 0, Milestone.REGISTERED: 150, Milestone.READY: 180, Milestone.ALLOCATABLE: 549}
        at = {each: begun + seconds for each, seconds in steps.items()}
        at[Milestone.ALLOCATABLE] += number
        kept.nodes.put(ProvisioningRecord(node=f"n{number}", uid=f"u{number}", group="gpu", at=at))
    return kept.config_map_data()


@pytest.fixture(scope="module")
def recorded(cluster: RunningLab) -> RunningLab:
    """A cluster with records, and a node without the accelerator label."""
    cluster.kubectl("create", "namespace", "tessera-system")
    cluster.apply(DEFINITION)
    cluster.kubectl("wait", "--for=condition=Established", "crd/clusterautoscalers.autoscaling.openshift.io")
    metadata = {"name": "provisioning-records", "namespace": "tessera-system"}
    records = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": book()}
    cluster.kubectl("apply", "--server-side", "-f", "-", manifest=records)
    owner = ("cluster.x-k8s.io/owner-kind=MachineSet", "cluster.x-k8s.io/owner-name=gpu")
    cluster.kubectl("annotate", "node", "node-1", *owner)
    return cluster


@pytest.fixture
def scaled(recorded: RunningLab) -> Iterator[RunningLab]:
    """The cluster with an autoscaler of short timers, whatever a test made of them before."""
    recorded.kubectl("apply", "--server-side", "-f", "-", manifest=SCALER)
    yield recorded
    recorded.kubectl("delete", "clusterautoscaler", "default")


def test_nothing_measured_is_said_in_one_line(cluster: RunningLab) -> None:
    said = cluster.tessera("autoscaler", "advise", "--group", "none", fails=True)
    assert said.startswith("error: no times were measured of node group none")
    assert said.count("\n") == 1


def test_the_loop_is_found_in_a_clusters_own_records(scaled: RunningLab) -> None:
    told = scaled.tessera("autoscaler", "advise")
    first, second = (line for line in told.splitlines() if line.startswith(("  1. ", "  2. ")))
    assert first.startswith("  1. the accelerator label is missing")
    assert "100% of its nodes take longer than maxNodeProvisionTime 5m" in second
    for fact in ("20 nodes were measured", "from request to usable card", "cannot support p99", "needs 299"):
        assert fact in told


def test_placeholders_are_taken_by_the_server_and_keep_their_priority(scaled: RunningLab) -> None:
    text = scaled.tessera(
        "autoscaler", "warm", "--pods-per-hour", "2", "--max-waiting-share", "0.3", "-o", "placeholders"
    )
    done = scaled.run("kubectl", "apply", "--server-side", "-n", "default", "-f", "-", text=text)
    assert done.returncode == 0, done.stderr
    selector = ("-n", "default", "-l", "app.kubernetes.io/name=tessera-warm")
    pod = scaled.eventually(lambda: scaled.get("pods", *selector)["items"])[0]
    assert (pod["spec"]["priority"], pod["spec"]["preemptionPolicy"]) == (-10, "Never")
    assert json.loads(scaled.tessera("autoscaler", "advise", "-o", "json"))["cluster"] == []


def test_a_placeholder_that_the_autoscaler_overlooks_is_found(scaled: RunningLab) -> None:
    kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
    scaled.apply({**kind, "metadata": {"name": "low"}, "value": -1000})
    pod = scaled.pod("overlooked", {"nvidia.com/gpu": 1})
    pod["spec"]["priorityClassName"] = "low"
    scaled.apply(pod, "default")
    told = scaled.tessera("autoscaler", "advise")
    for fact in ("no node is ever made for default/overlooked", "priority is below the autoscaler's cutoff of -10"):
        assert fact in told
    scaled.kubectl("delete", "-n", "default", "pod", "overlooked")


def test_the_advice_is_applied_as_it_is_printed_and_leaves_the_rest(scaled: RunningLab) -> None:
    text = scaled.tessera("autoscaler", "advise", "--accelerator-label", "-o", "openshift")
    assert yaml.safe_load(text)["spec"]["maxNodeProvisionTime"] == "15m"
    apply = ("apply", "--server-side", "--force-conflicts", "--field-manager=tessera", "-f", "-")
    done = scaled.run("kubectl", *apply, text=text)
    assert done.returncode == 0, done.stderr
    spec = scaled.get("clusterautoscaler", "default")["spec"]
    assert (spec["maxNodeProvisionTime"], spec["podPriorityThreshold"]) == ("15m", -10)
    assert spec["scaleDown"]["delayAfterDelete"] == "5m"
    (group,) = json.loads(scaled.tessera("autoscaler", "advise", "--accelerator-label", "-o", "json"))["groups"]
    assert group["current"]["max_node_provision"] == 900
    assert group["loop"]["late"] == 0
