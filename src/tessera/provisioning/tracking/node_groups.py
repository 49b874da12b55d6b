"""Reads the group of a node from the labels and annotations of its provider.

Times are compared within a group: its nodes have one machine type, one image and one location.
"""

from collections.abc import Mapping

KARPENTER_LABEL = "karpenter.sh/nodepool"

#: Labels that name the group, by provider: Karpenter, EKS, eksctl, GKE, AKS, Cluster API, Alibaba Cloud.
_LABELS = (
    KARPENTER_LABEL,
    "eks.amazonaws.com/nodegroup",
    "alpha.eksctl.io/nodegroup-name",
    "cloud.google.com/gke-nodepool",
    "kubernetes.azure.com/agentpool",
    "topology.cluster.x-k8s.io/deployment-name",
    "alibabacloud.com/nodepool-id",
)
#: Annotations that name the group: Cluster API writes the MachineSet that owns the node's Machine.
_OWNER_NAME = "cluster.x-k8s.io/owner-name"
_OWNER_KIND = "cluster.x-k8s.io/owner-kind"
#: OpenShift: the node's Machine, ``namespace/name``; a Machine's name is its MachineSet's and five characters.
_OPENSHIFT_MACHINE = "machine.openshift.io/machine"


def node_group(labels: Mapping[str, str], annotations: Mapping[str, str]) -> str:
    """The node group's name; empty if nothing names it."""
    for name in _LABELS:
        if labels.get(name):
            return labels[name]
    if annotations.get(_OWNER_KIND) == "MachineSet" and annotations.get(_OWNER_NAME):
        return annotations[_OWNER_NAME]
    machine = annotations.get(_OPENSHIFT_MACHINE, "").rpartition("/")[2]
    return machine.rpartition("-")[0]
