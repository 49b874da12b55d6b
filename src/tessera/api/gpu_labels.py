"""Labels by which others say that a node has NVIDIA GPUs, or will have them.

Everything of ours that has to tell such nodes from others reads this list: which nodes get drivers, whose way to usable
cards is recorded, what an autoscaler can know beforehand. ``deploy/agent.yaml`` repeats it for the scheduler. What a
node offers itself, and ``nvidia.com/mig.config``, say so too; those are not labels of discovery and stand elsewhere.
"""

from collections.abc import Mapping

#: Labels whose value ``true`` says so: NVIDIA's operator; Node Feature Discovery by NVIDIA's PCI vendor alone (as that
#: operator sets it up), and with the class of 3D controllers or of VGA controllers (as it comes).
PRESENT_LABELS = (
    "nvidia.com/gpu.present",
    "feature.node.kubernetes.io/pci-10de.present",
    "feature.node.kubernetes.io/pci-0302_10de.present",
    "feature.node.kubernetes.io/pci-0300_10de.present",
)
#: Labels with which cluster autoscalers know node groups with cards, whatever their value, by provider (GPULabel of the
#: cluster autoscaler's cloud providers). They are there from registration on.
ACCELERATOR_LABELS: Mapping[str, str] = {
    "cluster-api/accelerator": "Cluster API and OpenShift",
    "k8s.amazonaws.com/accelerator": "AWS",
    "cloud.google.com/gke-accelerator": "GKE",
    "kubernetes.azure.com/accelerator": "Azure",
    "accelerator": "Azure, older",
    "aliyun.accelerator/nvidia_name": "Alibaba Cloud",
}


def labels_say_gpu(labels: Mapping[str, str]) -> bool:
    """Whether one of these labels says that the node has NVIDIA GPUs."""
    return any(labels.get(name) == "true" for name in PRESENT_LABELS) or any(
        name in labels for name in ACCELERATOR_LABELS
    )
