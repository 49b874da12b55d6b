"""The whole cards and shares that a node has for pods which Tessera places.

The node's agent says what one device of a resource is (annotation ``tessera.dev/offers``). On a node of NVIDIA's device
plugin its labels say it. The amount is kubelet's allocatable, by which the scheduler counts too.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tessera.api.names import GPU_RESOURCES
from tessera.api.nodes.offers import NodeOffer, OfferKind
from tessera.kube.resources import Node
from tessera.limits.nodes import NODE_DEVICES
from tessera.mig.names import CARD_SLOTS
from tessera.placement.devices import SHARE_SLOTS

#: Labels of GPU feature discovery: the card's name, its memory in MiB, and the number of shares of one card.
PRODUCT_LABEL, MEMORY_LABEL, REPLICAS_LABEL = (
    "nvidia.com/gpu.product",
    "nvidia.com/gpu.memory",
    "nvidia.com/gpu.replicas",
)
#: Model of cards whose node says nothing of them.
UNKNOWN_MODEL = "GPU"
#: Digits of a number in a label, beyond which it is not read.
_DIGITS = 8


@dataclass(frozen=True, slots=True)
class NodeDevices:
    """The devices of one resource on a node.

    Attributes:
        resource: ``nvidia.com/gpu`` or ``nvidia.com/gpu.shared``.
        model: the model of the cards.
        count: devices that pods may hold, in use or not.
        slots: memory slots that one device counts as.
        memory_gb: GiB of one device; 0 if unknown.
    """

    resource: str
    model: str
    count: int
    slots: int
    memory_gb: int


def read_devices(node: Node, allocatable: Mapping[str, int], offers: Iterable[NodeOffer]) -> tuple[NodeDevices, ...]:
    """Returns the devices of a node; at most as many of each resource as the limit allows.

    Args:
        node: the node.
        allocatable: the amounts that pods may hold on it.
        offers: the content of its agent's annotation.
    """
    counts = {name: min(allocatable.get(name, 0), int(NODE_DEVICES)) for name in GPU_RESOURCES}
    if not any(count > 0 for count in counts.values()):
        return ()
    described = {each.resource: each for each in offers}
    labels = node.metadata.labels
    found = []
    for resource, count in counts.items():
        if count <= 0:
            continue
        offer = described.get(resource)
        if offer is not None:
            whole, model, mib = offer.kind is OfferKind.WHOLE, offer.product, offer.memory_mib
        else:
            replicas = max(1, _number(labels.get(REPLICAS_LABEL, "1")))
            model = labels.get(PRODUCT_LABEL, UNKNOWN_MODEL)
            whole = replicas == 1 and "-MIG-" not in model and not model.endswith("-SHARED")
            mib = _number(labels.get(MEMORY_LABEL, "0")) // replicas
        slots = CARD_SLOTS if whole else SHARE_SLOTS
        found.append(NodeDevices(resource, model or UNKNOWN_MODEL, count, slots, -(-mib // 1024)))
    return tuple(found)


def _number(text: str) -> int:
    return int(text) if len(text) <= _DIGITS and text.isascii() and text.isdecimal() else 0
