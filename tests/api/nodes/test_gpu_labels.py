"""Labels that other programs set, and that show that a node has GPUs."""

import pytest
import yaml

from tessera.api.nodes.node_cards import (
    ACCELERATOR_LABELS,
    DEPLOY_DISCOVERY_LABEL,
    DEPLOY_PLUGIN_LABEL,
    KEEP_OFF_LABELS,
    PRESENT_LABELS,
    brings_agent,
    keep_off_label,
    labels_say_gpu,
)
from tessera.cli.install.adoption import DEPLOY_PREFIX, PARTS
from tessera.doctor.manifests import deploy_folder


@pytest.mark.parametrize("name", PRESENT_LABELS)
@pytest.mark.parametrize(("value", "says"), [("true", True), ("false", False), ("", False)])
def test_what_was_discovered_counts_if_it_is_true(name: str, value: str, says: bool) -> None:
    assert labels_say_gpu({name: value}) is says


@pytest.mark.parametrize("name", ACCELERATOR_LABELS)
def test_an_autoscalers_label_counts_whatever_its_value(name: str) -> None:
    assert labels_say_gpu({name: "nvidia-t4"})
    assert labels_say_gpu({name: ""})


def test_the_device_class_of_another_vendor_says_nothing() -> None:
    assert not labels_say_gpu({})
    assert not labels_say_gpu({"feature.node.kubernetes.io/pci-0302_1002.present": "true", "gpu": "true"})


#: ``GPULabel`` of the cluster autoscaler's providers (kubernetes/autoscaler, cloudprovider/*), where it is not empty.
PROVIDERS = {
    "alicloud": "aliyun.accelerator/nvidia_name",
    "aws": "k8s.amazonaws.com/accelerator",
    "azure": "kubernetes.azure.com/accelerator",
    "azure, cloudstack": "accelerator",
    "baiducloud": "baidu/nvidia_name",
    "bizflycloud": "bke.bizflycloud.vn/gpu-node",
    "brightbox": "cloud.brightbox.com/gpu-node",
    "cherryservers": "cherryservers.com/gpu",
    "civo": "civo.com/gpu-node",
    "clusterapi": "cluster-api/accelerator",
    "digitalocean": "cloud.digitalocean.com/gpu-node",
    "gce, equinixmetal, huaweicloud": "cloud.google.com/gke-accelerator",
    "hetzner": "hcloud/gpu-node",
    "magnum": "magnum.openstack.org/gpu",
    "ovhcloud": "node.kubernetes.ovhcloud.com/gpu",
    "scaleway": "k8s.scw.cloud/gpu",
    "tencentcloud": "cloud.tencent.com/tke-accelerator",
}


def test_the_labels_of_all_the_autoscalers_providers_are_known() -> None:
    assert sorted(ACCELERATOR_LABELS) == sorted(PROVIDERS.values())


def test_the_agent_goes_where_one_of_these_labels_is() -> None:
    made = yaml.safe_load((deploy_folder() / "agent.yaml").read_text())
    affinity = made["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    keys = [term["matchExpressions"][0]["key"] for term in terms]
    assert sorted(keys) == sorted([*PRESENT_LABELS, *ACCELERATOR_LABELS, "nvidia.com/mig.config"] * 2)


def test_no_label_brings_the_agent_to_a_node_that_it_is_kept_off() -> None:
    off = [{"key": key, "operator": "NotIn", "values": list(values)} for key, values in KEEP_OFF_LABELS.items()]
    made = yaml.safe_load((deploy_folder() / "agent.yaml").read_text())
    affinity = made["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    taken_over = [each for each in off if each["key"] != DEPLOY_PLUGIN_LABEL]
    taken_over.append({"key": DEPLOY_DISCOVERY_LABEL, "operator": "In", "values": ["false"]})
    terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert [term["matchExpressions"][1:] for term in terms] == [off, taken_over] * (len(terms) // 2)


def test_a_node_that_was_taken_over_from_nvidias_operator_keeps_its_agent() -> None:
    parts = {f"{DEPLOY_PREFIX}{part}": "false" for part in PARTS}
    assert brings_agent({"nvidia.com/gpu.present": "true", **parts})
    assert not brings_agent({"nvidia.com/gpu.present": "true", **parts, "nvidia.com/gpu.deploy.operands": "false"})


@pytest.mark.parametrize(
    ("label", "brings"),
    [
        ("nvidia.com/gpu.deploy.operands=false", False),
        ("nvidia.com/gpu.deploy.operands=true", True),
        ("nvidia.com/gpu.deploy.device-plugin=false", False),
        ("nvidia.com/gpu.deploy.device-plugin=paused-for-driver-upgrade", True),
        ("nvidia.com/gpu.workload.config=vm-passthrough", False),
        ("nvidia.com/gpu.workload.config=vm-vgpu", False),
        ("nvidia.com/gpu.workload.config=container", True),
        ("nvidia.com/gpu.workload.config=vm-pasthrough", True),  # NVIDIA's operator takes no other value either
    ],
)
@pytest.mark.parametrize("present", [*(f"{name}=true" for name in PRESENT_LABELS), "nvidia.com/mig.config=dynamic"])
def test_people_keep_the_agent_off_by_a_label(label: str, brings: bool, present: str) -> None:
    labels = dict(each.split("=") for each in (label, present))
    assert brings_agent(labels) is brings
    assert keep_off_label(labels) == ("" if brings else label)
