"""Tells if a node whose objects are incomplete may turn out to hold a pod that no node can hold now.

Several writers describe a node, in any order: its Node, its Instaslice object, and the amounts that kubelet publishes.
One of these may be missing for a moment, for instance while a node registers or its layout changes. An answer that is
final must not depend on such a moment.
"""

from collections import Counter

from tessera.controller.objects.node_info import NodeInfo
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.slicing.state.slicer_state import SlicerState


def may_hold_later(state: SlicerState, pod: PodInfo) -> bool:
    """Returns True if a node that is incomplete now may turn out to hold this pod once it is empty.

    For slices, such a node has an Instaslice object that has yet to list all of its cards, or an object whose Node has
    not come. A card that does not answer is not listed.
    For whole cards and shares, it has enough of them, though pods may not hold them all now, or may have more than it
    says.
    """
    nodes = state.cluster.nodes
    if pod.devices:
        wanted = Counter(pod.devices)
        return any(node.unread_devices or wanted <= Counter(dict(node.device_counts)) for node in nodes.values())
    if not state.cluster.objects.keys() <= nodes.keys():
        return True
    return any(node.object_expected and not _lists_cards(state, node) for node in nodes.values())


def _lists_cards(state: SlicerState, node: NodeInfo) -> bool:
    resources = state.cards.get(node.name)
    return resources is not None and len(resources.node_gpus) >= max(1, node.sliced_cards)
