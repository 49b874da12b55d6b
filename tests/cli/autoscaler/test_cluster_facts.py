"""Facts about a cluster's autoscaler, read from the cluster's objects."""

from typing import Any

import pytest
from tests.cli.autoscaler.conftest import Look

from tessera.api.nodes.node_groups import NO_HELP_REASON, Pause, pause_text
from tessera.cli.autoscaler.cluster_facts import ClusterFacts
from tessera.provisioning.timer_advice import Labels
from tessera.provisioning.timers import DEFAULTS, Timers

CONTAINER = {"name": "a", "image": "a"}
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
    assert facts.label_facts("whole") == Labels(present=True, **known)  # type: ignore[arg-type]
    assert facts.label_facts("half") == Labels(present=False, types=("nvidia.com/gpu",))
    assert facts.label_facts("gone") == Labels()


@pytest.mark.parametrize(
    ("provider", "label", "there"),
    [
        ("aws:///eu-1a/i-1", "k8s.amazonaws.com/accelerator", True),
        ("aws:///eu-1a/i-1", "cluster-api/accelerator", False),
        ("gce://p/z/n", "cloud.google.com/gke-accelerator", True),
        ("azure:///subscriptions/x", "accelerator", True),
        ("openstack:///x", "cluster-api/accelerator", True),
        ("openstack:///x", "node.kubernetes.ovhcloud.com/gpu", True),
        ("openstack:///x", "magnum.openstack.org/gpu", True),
        ("openstack:///x", "k8s.amazonaws.com/accelerator", False),
        ("cce://i-1", "baidu/nvidia_name", True),
        ("qcloud:///100003/ins-1", "cloud.tencent.com/tke-accelerator", True),
        ("scaleway://instance/fr-par-1/x", "k8s.scw.cloud/gpu", True),
        ("civo://x", "civo.com/gpu-node", True),
        ("digitalocean://1", "cloud.digitalocean.com/gpu-node", True),
        ("hcloud://1", "hcloud/gpu-node", True),
        ("bizflycloud://x", "bke.bizflycloud.vn/gpu-node", True),
        ("brightbox://srv-1", "cloud.brightbox.com/gpu-node", True),
        ("cherryservers://1", "cherryservers.com/gpu", True),
    ],
)
def test_only_the_providers_own_label_counts(looked: Look, provider: str, label: str, there: bool) -> None:
    made = node("a", "gpu", **{label: "t4"})
    _, facts = looked({**made, "spec": {"providerID": provider}})
    assert facts.label_facts("gpu").present is there


def test_a_node_of_a_machine_needs_the_label_of_cluster_api_wherever_it_runs(looked: Look) -> None:
    made = node("a", "gpu", **{"k8s.amazonaws.com/accelerator": "t4"})
    made["metadata"]["annotations"]["machine.openshift.io/machine"] = "ns/gpu-abcde"
    _, facts = looked({**made, "spec": {"providerID": "aws:///x"}})
    assert facts.label_facts("gpu").present is False


@pytest.mark.parametrize("labels", [{}, {"cluster-api/accelerator": "nvidia-t4"}])
def test_openshifts_template_decides_before_nodes_that_somebody_labelled_later(
    looked: Look, labels: dict[str, str]
) -> None:
    made = machine_set("machine.openshift.io", "gpu")
    made["spec"] = {"template": {"spec": {"metadata": {"labels": labels}}}}
    _, facts = looked(made, node("a", "gpu", **{"cluster-api__accelerator": "nvidia-t4"}))
    assert facts.label_facts("gpu").present is bool(labels)


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


def test_waiting_pods_that_new_nodes_did_not_help_are_found_by_their_last_event(looked: Look) -> None:
    def event(name: str, pod: str, until: float, at: str) -> dict[str, Any]:
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name},
            "involvedObject": {"kind": "Pod", "name": pod, "namespace": "machines"},
            "reason": NO_HELP_REASON,
            "message": pause_text("a", Pause(1_799_990_000, until, "why")),
            "lastTimestamp": at,
        }

    def pod(name: str, **spec: Any) -> dict[str, Any]:
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {"containers": [CONTAINER], **spec},
        }

    _, facts = looked(
        pod("waits"),
        pod("placed", nodeName="n1"),
        event("e2", "waits", 1_800_000_600, "2027-01-15T08:00:00Z"),
        event("e1", "waits", 1_799_999_000, "2027-01-15T07:00:00Z"),
        event("e3", "placed", 1_800_000_600, "2027-01-15T08:00:00Z"),
        event("e4", "gone", 1_800_000_600, "2027-01-15T08:00:00Z"),
    )
    assert facts.paused == (("machines/waits", "a", Pause(1_799_990_000, 1_800_000_600, "why")),)


def offering(made: dict[str, Any], **amounts: str) -> dict[str, Any]:
    """The node with what kubelet gives out: ``mig_1g`` is ``nvidia.com/mig-1g``."""
    named = {f"nvidia.com/{name.replace('_', '-')}": amount for name, amount in amounts.items()}
    return {**made, "status": {"allocatable": {"cpu": "8", **named}}}


ACCELERATOR = {"cluster-api__accelerator": "a100"}
DYNAMIC = {"nvidia.com__mig.config": "dynamic"}


def test_groups_whose_nodes_offer_slices_or_renamed_shares_are_known(looked: Look) -> None:
    _, facts = looked(
        offering(node("a", "whole", **ACCELERATOR), gpu="8"),
        offering(node("b", "single", **ACCELERATOR, **{"nvidia.com__mig.config": "all-1g.5gb"}), gpu="7"),
        offering(node("c", "mixed", **ACCELERATOR), gpu="0", **{"mig_1g.5gb": "7"}),
        offering(node("d", "renamed", **ACCELERATOR), **{"gpu.shared": "4"}),
        node("e", "coming", **ACCELERATOR, **DYNAMIC),
        node("f", "tainted", **DYNAMIC),
        node("g", "starting", **ACCELERATOR),
        offering(node("h", "", **ACCELERATOR, **{"karpenter.sh__nodepool": "k"}), **{"gpu.shared": "4"}),
    )
    assert facts.sliced == {"mixed", "renamed", "coming", "tainted", "k"}
    assert facts.never_ready() == ("coming", "mixed", "renamed")
    assert facts.label_facts("mixed").sliced
    assert facts.label_facts("tainted") == Labels(present=False, sliced=True)
    assert not facts.label_facts("whole").sliced


def test_openshifts_template_tells_before_there_is_a_node(looked: Look) -> None:
    made = machine_set("machine.openshift.io", "gpu")
    labels = {"cluster-api/accelerator": "a100", "nvidia.com/mig.config": "dynamic"}
    made["spec"] = {"template": {"spec": {"metadata": {"labels": labels}}}}
    _, facts = looked(made)
    assert facts.never_ready() == ("gpu",)


def test_labelled_nodes_of_no_autoscaled_group_are_found(looked: Look) -> None:
    size = {"cluster.x-k8s.io/cluster-api-autoscaler-node-group-min-size": "0"}
    bare = {"apiVersion": "v1", "kind": "Node"}
    _, facts = looked(
        machine_set("cluster.x-k8s.io", "grows", annotations=size),
        machine_set("cluster.x-k8s.io", "stays"),
        node("a", "grows", **ACCELERATOR),
        node("b", "stays", **ACCELERATOR),
        offering(node("c", "stays", **ACCELERATOR), gpu="1"),
        offering({**bare, "metadata": {"name": "d", "labels": {"accelerator": "nvidia"}}}, **{"mig_1g.5gb": "7"}),
        {**bare, "metadata": {"name": "e", "labels": {"nvidia.com/mig.config": "dynamic"}}},
        {**bare, "metadata": {"name": "f", "labels": {"kubernetes.azure.com/agentpool": "p", "accelerator": "nvidia"}}},
    )
    assert facts.unmanaged == (("b", "cluster-api/accelerator"), ("d", "accelerator"))
