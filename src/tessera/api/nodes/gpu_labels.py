"""Labels by which other software marks nodes that have NVIDIA GPUs, or will have them.

All parts of Tessera that must recognise such nodes read this list: those that give nodes drivers, record their way to
usable cards, or tell an autoscaler in advance. ``deploy/agent.yaml`` repeats it for the scheduler. A node's own offers
and ``nvidia.com/mig.config`` also show GPUs; they are no labels of discovery and are defined elsewhere.

The labels with product names are here too, so that writers of labels and selectors spell a product alike.
"""

import re
from collections.abc import Mapping

from tessera.api.names import MIG_CONFIG_LABEL

#: Labels that mean GPUs with the value ``true``: NVIDIA's operator; Node Feature Discovery by NVIDIA's PCI vendor alone
#: (as that operator configures it), and with the class of 3D controllers or of VGA controllers (its default).
PRESENT_LABELS = (
    "nvidia.com/gpu.present",
    "feature.node.kubernetes.io/pci-10de.present",
    "feature.node.kubernetes.io/pci-0302_10de.present",
    "feature.node.kubernetes.io/pci-0300_10de.present",
)
#: Labels by which cluster autoscalers recognise node groups with cards, with any value, from registration on (GPULabel
#: of the cluster autoscaler's providers): of Cluster API and OpenShift, and by the scheme of a node's providerID.
#: OVHcloud and Magnum share OpenStack's scheme, under which Cluster API makes nodes, too.
CAPI_ACCELERATOR = "cluster-api/accelerator"
PROVIDER_ACCELERATORS: Mapping[str, tuple[str, ...]] = {
    "aws": ("k8s.amazonaws.com/accelerator",),
    "gce": ("cloud.google.com/gke-accelerator",),
    "azure": ("kubernetes.azure.com/accelerator", "accelerator"),
    "bizflycloud": ("bke.bizflycloud.vn/gpu-node",),
    "brightbox": ("cloud.brightbox.com/gpu-node",),
    "cce": ("baidu/nvidia_name",),
    "cherryservers": ("cherryservers.com/gpu",),
    "civo": ("civo.com/gpu-node",),
    "digitalocean": ("cloud.digitalocean.com/gpu-node",),
    "hcloud": ("hcloud/gpu-node",),
    "openstack": ("node.kubernetes.ovhcloud.com/gpu", "magnum.openstack.org/gpu", CAPI_ACCELERATOR),
    "qcloud": ("cloud.tencent.com/tke-accelerator",),
    "scaleway": ("k8s.scw.cloud/gpu",),
}
#: All of them, each once; Alibaba Cloud's providerIDs have no scheme.
ACCELERATOR_LABELS = tuple(
    dict.fromkeys(
        (
            CAPI_ACCELERATOR,
            *(label for labels in PROVIDER_ACCELERATORS.values() for label in labels),
            "aliyun.accelerator/nvidia_name",
        )
    )
)


#: NVIDIA's label by which people keep operators from a node, with the value ``false``: no agent, and no driver.
DEPLOY_OPERANDS_LABEL = "nvidia.com/gpu.deploy.operands"
#: The same for the device plugin alone: no agent; a driver may come. ``tessera install --adopt`` sets it too, together
#: with that of feature discovery (:data:`tessera.gpu_operator.settings.adoption.PARTS`), to end NVIDIA's parts beside
#: an agent; both together keep no agent off.
DEPLOY_PLUGIN_LABEL = "nvidia.com/gpu.deploy.device-plugin"
DEPLOY_DISCOVERY_LABEL = "nvidia.com/gpu.deploy.gpu-feature-discovery"
#: What a node's cards are for, and the values that give them to virtual machines (gpu-operator, ``state_manager.go``).
WORKLOAD_LABEL = "nvidia.com/gpu.workload.config"
VM_WORKLOADS = ("vm-passthrough", "vm-vgpu")
#: The labels that keep the agent off a node, with their values. ``deploy/agent.yaml`` repeats them for the scheduler.
KEEP_OFF_LABELS: Mapping[str, tuple[str, ...]] = {
    DEPLOY_OPERANDS_LABEL: ("false",),
    DEPLOY_PLUGIN_LABEL: ("false",),
    WORKLOAD_LABEL: VM_WORKLOADS,
}


def keep_off_label(labels: Mapping[str, str]) -> str:
    """``name=value`` of the label by which people keep the agent off a node; empty if no label does."""
    adopted = labels.get(DEPLOY_DISCOVERY_LABEL) == "false"
    for name, off in KEEP_OFF_LABELS.items():
        if labels.get(name) in off and not (adopted and name == DEPLOY_PLUGIN_LABEL):
            return f"{name}={labels[name]}"
    return ""


def brings_agent(labels: Mapping[str, str]) -> bool:
    """True if a node's labels bring an agent to it: one says that it has GPUs, and none keeps the agent off."""
    return is_gpu_node(labels) and not keep_off_label(labels)


def labels_say_gpu(labels: Mapping[str, str]) -> bool:
    """True if one of these labels says that the node has NVIDIA GPUs."""
    return any(labels.get(name) == "true" for name in PRESENT_LABELS) or any(
        name in labels for name in ACCELERATOR_LABELS
    )


def is_gpu_node(labels: Mapping[str, str]) -> bool:
    """True if anything indicates that the node has NVIDIA GPUs: these labels, or one of a MIG layout."""
    return MIG_CONFIG_LABEL in labels or labels_say_gpu(labels)


#: Most characters of a label's value, and of its name after the prefix (Kubernetes, label syntax).
LONGEST = 63
#: Prefix of the labels that count a node's cards of one model; the product follows.
COUNT_LABEL = "tessera.dev/count."
_NAME = COUNT_LABEL.partition("/")[2]


def sanitise(text: str) -> str:
    """Returns a text as a label's value: drops characters besides letters, digits, ``-_.``; a blank becomes one dash.

    Same rules as GPU feature discovery, so that selectors written for it match.
    """
    return "-".join(re.sub(r"[^A-Za-z0-9\-_. ]", "", text).split())


def product_label(product: str, *suffixes: str) -> str:
    """Returns a product's name with its suffixes as a label's value; shortens a too long name at its end."""
    tail = "".join("-" + sanitise(suffix) for suffix in suffixes)
    name = sanitise(product)
    if len(name) + len(tail) > LONGEST:
        name = name[: LONGEST - len(tail)].rstrip("-_.")
    return name + tail


def count_label(product: str) -> str:
    """Returns the label that counts a node's cards of a model; nodes without such a card lack it."""
    return COUNT_LABEL + sanitise(product)[: LONGEST - len(_NAME)].rstrip("-_.")
