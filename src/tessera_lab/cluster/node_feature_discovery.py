"""Node feature discovery, as far as GPUs need it: labels a node's features, some time after the node is Ready.

The real worker labels when its pod runs and looks again every 60 s; the lab has one delay for both. It labels again
after each boot, since another kernel may run. Names of labels: NFD's sources ``kernel``, ``system`` and ``pci``.
"""

from typing import Any

from tessera.driver.nodes.os_image import parse_os_image
from tessera.kube.client.client import Client
from tessera.kube.client.errors import NotFound
from tessera.kube.resources import NODES
from tessera_lab.kubelet.node.node import SimulatedNode

_PREFIX = "feature.node.kubernetes.io/"
#: NVIDIA's cards by vendor, and by class (3D controller) and vendor.
_CARD_LABELS = ("pci-10de.present", "pci-0302_10de.present")


async def label_node(client: Client, node: SimulatedNode, seconds: float) -> None:
    """Labels a node that has just become Ready.

    Args:
        client: writes the labels.
        node: the node.
        seconds: delay until the worker labels the node.
    """
    await node.waits.sleep(seconds)
    labels = feature_labels(node.kernel, node.options.os_image, cards=node.machine is not None)
    try:
        await client.merge_patch(NODES, node.name, {"metadata": {"labels": labels}})
    except NotFound:
        return  # the node was deleted meanwhile


def feature_labels(kernel: str, os_image: str, *, cards: bool) -> dict[str, Any]:
    """The labels of a node.

    Args:
        kernel: ``uname -r``.
        os_image: ``PRETTY_NAME`` of its os-release.
        cards: true if it has cards of NVIDIA.
    """
    found = {"kernel-version.full": kernel.replace("+", "_")}  # a label's value has no plus sign
    release = parse_os_image(os_image)
    if release is not None:
        major, _, minor = release.version.partition(".")
        found |= {
            "system-os_release.ID": release.id,
            "system-os_release.VERSION_ID": release.version,
            "system-os_release.VERSION_ID.major": major,
            "system-os_release.VERSION_ID.minor": minor,
            "system-os_release.OSTREE_VERSION": release.ostree,
        }
    if cards:
        found |= dict.fromkeys(_CARD_LABELS, "true")
    return {_PREFIX + name: value for name, value in found.items() if value}
