"""The whole cards and shares that a node has when it is empty.

The node's agent says how many devices a resource has, in use or not, healthy or not; kubelet's capacity says it on
nodes of other device plugins. The larger counts. A node that is known to have cards but has told neither is *unread*,
and so is one whose layout is being changed: it may turn out to have any number.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from tessera.api.names import GPU_RESOURCES, MIG_CONFIG_LABEL, MIG_CONFIG_STATE_LABEL
from tessera.api.nodes.gpu_labels import brings_agent
from tessera.api.nodes.offers import NodeOffer, OfferKind
from tessera.kube.quantity import count_or_zero
from tessera.kube.resources import Node

#: Resources with the number of their devices, sorted; no number is 0.
DeviceCounts = tuple[tuple[str, int], ...]

#: States of a layout in which the agent changes nothing.
_AT_REST = frozenset({"", "success", "failed"})


def read_device_counts(node: Node | None, offers: Iterable[NodeOffer]) -> DeviceCounts:
    """Returns the devices of a node."""
    offered: Counter[str] = Counter()
    for each in offers:
        if each.kind is not OfferKind.DYNAMIC_SLICE:
            offered[each.resource] += each.count
    status = [] if node is None else [node.status.capacity, node.status.allocatable]
    counts = {
        name: max([offered[name], *(count_or_zero(amounts.get(name, "0")) for amounts in status)])
        for name in GPU_RESOURCES
    }
    return tuple(sorted((name, count) for name, count in counts.items() if count > 0))


def is_changing(labels: Mapping[str, str]) -> bool:
    """True if the layout of a node's cards is being changed."""
    return MIG_CONFIG_LABEL in labels and labels.get(MIG_CONFIG_STATE_LABEL, "") not in _AT_REST


def is_unread(node: Node | None, offers: Iterable[NodeOffer], counts: DeviceCounts) -> bool:
    """True if a node may have more devices than it says now."""
    if node is None:
        return False
    labels = node.metadata.labels
    silent = not counts and not any(True for _ in offers)
    served = any(name.startswith("nvidia.com/") and amount != "0" for name, amount in node.status.capacity.items())
    return is_changing(labels) or (silent and not served and brings_agent(labels))
