"""What objects of a cluster say of its autoscaler."""

from typing import Any

import pytest
from tests.cli.autoscaling.conftest import Look

from tessera.cli.autoscaling.facts import ClusterFacts
from tessera.provisioning.advise.findings import Labels
from tessera.provisioning.advise.timers import DEFAULTS, Timers

OPENSHIFT = {
    "apiVersion": "autoscaling.openshift.io/v1",
    "kind": "ClusterAutoscaler",
    "metadata": {"name": "default"},
    "spec": {
        "podPriorityThreshold": -5,
        "resourceLimits": {"gpus": [{"type": "nvidia.com/gpu", "min": 0, "max": 16}]},
        "maxNodeProvisionTime": "20m",
        "scaleDown": {"enabled": False, "delayAfterAdd": "10m", "unneededTime": "5m"},
    },
}
"""With the values of OpenShift's own sample for scaleDown."""


def machine_set(group: str, name: str, *, annotations: dict[str, str] | None = None, **more: Any) -> dict[str, Any]:
    """A MachineSet of one of both kinds."""
    owners = [{"apiVersion": "v1", "kind": "MachineDeployment", "name": more["owner"], "uid": "u"}] if more else []
    return {
        "apiVersion": f"{group}/v1beta1",
        "kind": "MachineSet",
        "metadata": {"name": name, "annotations": annotations or {}, "ownerReferences": owners},
    }


def node(name: str, group: str, **labels: str) -> dict[str, Any]:
    """A node of a Cluster API MachineSet."""
    owner = {"cluster.x-k8s.io/owner-kind": "MachineSet", "cluster.x-k8s.io/owner-name": group}
    spelled = {key.replace("__", "/"): value for key, value in labels.items()}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": spelled, "annotations": owner}}


def test_nothing_is_known_of_an_empty_cluster(looked: Look) -> None:
    for served in (True, False):
        assert looked(served=served) == ((), ClusterFacts())


def test_openshifts_object_tells_timers_types_and_the_cutoff(looked: Look) -> None:
    _, facts = looked(OPENSHIFT)
    timers = Timers(max_node_provision=1200, max_node_startup=900, unneeded=300, delay_after_add=600)
    assert facts.timers("any") == timers
    assert facts.settings.gpu_types == ("nvidia.com/gpu",)
    assert (facts.settings.cutoff, facts.settings.scale_down) == (-5, False)


@pytest.mark.parametrize("separate", [True, False])
def test_flags_of_a_deployment_tell_the_same(looked: Look, separate: bool) -> None:
    flags = ["--max-node-provision-time=7m", "--gpu-total=nvidia-t4:0:8", "--expendable-pods-priority-cutoff=-20"]
    args = [part for flag in flags for part in flag.split("=")] if separate else flags
    container = {"name": "a", "image": "a", "command": ["./cluster-autoscaler"], "args": [*args, "--v=4"]}
    labels = {"app": "a"}
    _, facts = looked(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "aws-cluster-autoscaler"},
            "spec": {
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
            },
        },
        served=False,
    )
    assert facts.timers("any").max_node_provision == 420
    assert facts.timers("any").unneeded == DEFAULTS.unneeded
    assert (facts.settings.gpu_types, facts.settings.cutoff) == (("nvidia-t4",), -20)


@pytest.mark.parametrize("group", ["cluster.x-k8s.io", "machine.openshift.io"])
def test_annotations_of_a_machine_set_are_its_groups_own_timers(looked: Look, group: str) -> None:
    options = f"{group}/autoscaling-options-"
    annotations = {f"{options}maxnodeprovisiontime": "25m0s", f"{options}scaledownunneededtime": "soon"}
    _, facts = looked(OPENSHIFT, machine_set(group, "gpu", annotations=annotations))
    assert facts.timers("gpu").max_node_provision == 1500
    assert facts.timers("gpu").unneeded == 300  # what cannot be read is not in force
    assert facts.timers("other").max_node_provision == 1200
    assert facts.annotation_group("gpu") == group


def test_a_machine_deployment_speaks_for_its_sets_and_for_its_topology(looked: Look) -> None:
    deployment = {
        "apiVersion": "cluster.x-k8s.io/v1beta1",
        "kind": "MachineDeployment",
        "metadata": {
            "name": "lab-gpu-x7",
            "labels": {"topology.cluster.x-k8s.io/deployment-name": "gpu"},
            "annotations": {"cluster.x-k8s.io/autoscaling-options-maxnodestartuptime": "30m"},
        },
    }
    _, facts = looked(machine_set("cluster.x-k8s.io", "lab-gpu-x7-abcde", owner="lab-gpu-x7"), deployment)
    assert {name: facts.timers(name).max_node_startup for name in ("lab-gpu-x7-abcde", "lab-gpu-x7", "gpu", "x")} == {
        "lab-gpu-x7-abcde": 1800,
        "lab-gpu-x7": 1800,
        "gpu": 1800,
        "x": None,
    }


def test_a_group_is_labelled_if_all_of_its_nodes_are(looked: Look) -> None:
    _, facts = looked(
        OPENSHIFT,
        node("a", "whole", **{"cluster-api__accelerator": "nvidia-t4"}),
        node("b", "half", **{"cluster-api__accelerator": "nvidia-t4"}),
        node("c", "half"),
    )
    known = {"name": "cluster-api/accelerator", "value": "nvidia-t4", "types": ("nvidia.com/gpu",)}
    assert facts.labelled("whole") == Labels(there=True, **known)  # type: ignore[arg-type]
    assert facts.labelled("half") == Labels(there=False, types=("nvidia.com/gpu",))
    assert facts.labelled("gone") == Labels()


@pytest.mark.parametrize(
    ("provider", "label", "there"),
    [
        ("aws:///eu-1a/i-1", "k8s.amazonaws.com/accelerator", True),
        ("aws:///eu-1a/i-1", "cluster-api/accelerator", False),
        ("gce://p/z/n", "cloud.google.com/gke-accelerator", True),
        ("azure:///subscriptions/x", "accelerator", True),
        ("openstack:///x", "cluster-api/accelerator", True),
    ],
)
def test_only_the_providers_own_label_counts(looked: Look, provider: str, label: str, there: bool) -> None:
    made = node("a", "gpu", **{label: "t4"})
    _, facts = looked({**made, "spec": {"providerID": provider}})
    assert facts.labelled("gpu").there is there


def test_a_node_of_a_machine_needs_the_label_of_cluster_api_wherever_it_runs(looked: Look) -> None:
    made = node("a", "gpu", **{"k8s.amazonaws.com/accelerator": "t4"})
    made["metadata"]["annotations"]["machine.openshift.io/machine"] = "ns/gpu-abcde"
    _, facts = looked({**made, "spec": {"providerID": "aws:///x"}})
    assert facts.labelled("gpu").there is False


@pytest.mark.parametrize("labels", [{}, {"cluster-api/accelerator": "nvidia-t4"}])
def test_openshifts_template_decides_before_nodes_that_somebody_labelled_later(
    looked: Look, labels: dict[str, str]
) -> None:
    made = machine_set("machine.openshift.io", "gpu")
    made["spec"] = {"template": {"spec": {"metadata": {"labels": labels}}}}
    _, facts = looked(made, node("a", "gpu", **{"cluster-api__accelerator": "nvidia-t4"}))
    assert facts.labelled("gpu").there is bool(labels)


def test_karpenters_groups_are_known_with_and_without_nodes(looked: Look) -> None:
    def pool(name: str, after: str) -> dict[str, Any]:
        spec = {"disruption": {"consolidateAfter": after}}
        return {"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": name}, "spec": spec}

    _, facts = looked(
        OPENSHIFT,
        pool("quick", "30s"),
        pool("slow", "Never"),
        node("a", "", **{"karpenter.sh__nodepool": "full"}),
        node("b", "capi"),
    )
    assert facts.karpenter == {"quick": 30, "slow": None, "full": None}
    assert facts.timers("quick") == Timers(unneeded=30)


def test_pods_for_which_no_node_is_made_are_found(looked: Look) -> None:
    def priority(name: str, value: int) -> dict[str, Any]:
        kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
        return {**kind, "metadata": {"name": name}, "value": value}

    def pod(name: str, resource: str, priority: str, **spec: Any) -> dict[str, Any]:
        container = {"name": "a", "image": "a", "resources": {"limits": {resource: "1"}}}
        body = {"containers": [container], "priorityClassName": priority, **spec}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": body}

    _, facts = looked(
        priority("low", -1000),
        priority("right", -10),
        pod("placeholder", "nvidia.com/gpu", "low"),
        pod("placed", "nvidia.com/gpu", "low", nodeName="n1"),
        pod("other", "cpu", "low"),
        pod("fine", "nvidia.com/gpu", "right"),
    )
    assert facts.expendable == ("machines/placeholder",)
