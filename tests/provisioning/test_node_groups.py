"""A node's group is what its maker calls it."""

import pytest

from tessera.provisioning.timestamps import node_group


@pytest.mark.parametrize(
    ("labels", "annotations", "group"),
    [
        ({"karpenter.sh/nodepool": "gpu"}, {}, "gpu"),
        ({"eks.amazonaws.com/nodegroup": "g4dn"}, {}, "g4dn"),
        ({"cloud.google.com/gke-nodepool": "t4"}, {}, "t4"),
        ({}, {"cluster.x-k8s.io/owner-kind": "MachineSet", "cluster.x-k8s.io/owner-name": "gpu-a"}, "gpu-a"),
        ({}, {"cluster.x-k8s.io/owner-kind": "KubeadmControlPlane", "cluster.x-k8s.io/owner-name": "cp"}, ""),
        ({}, {"machine.openshift.io/machine": "openshift-machine-api/ocp-gpu-us-east-1a-x7k2p"}, "ocp-gpu-us-east-1a"),
        ({"kubernetes.io/hostname": "n"}, {}, ""),
    ],
)
def test_the_group_is_read_from_labels_then_annotations(
    labels: dict[str, str], annotations: dict[str, str], group: str
) -> None:
    assert node_group(labels, annotations) == group
