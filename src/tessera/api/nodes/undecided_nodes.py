"""Nodes that have just registered and may turn out to have GPUs.

A new node has no GPU labels at first: Node Feature Discovery writes them some time after kubelet has started, and the
agent, which says what cards there are, needs one of them. Until then such a node looks like one without GPUs. Admission
and Kueue's check refuse for good, so they must not take that for an answer. A new node is *undecided* for
:data:`DISCOVERY_SECONDS` from its registration, or until

- somebody has told what it offers; or
- feature discovery has written its labels, and none says that there is a device of NVIDIA. Discovery names the labels
  that it wrote in an annotation; a label of its form alone may come from the node pool's template.

Older nodes with GPU labels that offer nothing are the business of :mod:`tessera.api.nodes.node_cards`.
"""

from collections.abc import Callable

from tessera.api.nodes.node_cards import keep_off_label, labels_say_gpu
from tessera.api.nodes.offers import OFFERS_ANNOTATION
from tessera.clock import parse_time_or_zero
from tessera.kube.resources import Node
from tessera.kube.watch.cache import EventKind, WatchEvent

#: Seconds after a node's registration in which its GPUs may be found: the default startup deadline of new nodes, and
#: Cluster Autoscaler's ``--max-node-provision-time``.
DISCOVERY_SECONDS = 900.0
#: The annotation with the names of the labels that Node Feature Discovery wrote; ``-instance`` puts a prefix before it.
_DISCOVERED = "nfd.node.kubernetes.io/feature-labels"
#: Begin of its labels of PCI devices.
_PCI = "feature.node.kubernetes.io/pci-"
#: NVIDIA's number among PCI vendors. Discovery can be set to name class and device beside it, in any order.
_VENDOR = "10de"


def undecided_until(node: Node) -> float:
    """Returns the time until which a node may turn out to have GPUs, seconds since 1970; 0 for a node that was read."""
    labels, annotations = node.metadata.labels, node.metadata.annotations
    told = OFFERS_ANNOTATION in annotations or bool(keep_off_label(labels))
    offers = any(name.startswith("nvidia.com/") and amount != "0" for name, amount in node.status.capacity.items())
    discovered = any(name == _DISCOVERED or name.endswith("." + _DISCOVERED) for name in annotations)
    nvidia = labels_say_gpu(labels) or any(name.startswith(_PCI) and _VENDOR in name for name in labels)
    if told or offers or (discovered and not nvidia):
        return 0.0
    return parse_time_or_zero(node.metadata.creation_timestamp or "") + DISCOVERY_SECONDS


class UndecidedNodes:
    """The nodes that are undecided.

    Args:
        now: returns the time, seconds since 1970.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        #: By name, :func:`undecided_until`; a node whose time is over goes with the next question.
        self._until: dict[str, float] = {}

    def node_changed(self, event: WatchEvent[Node]) -> None:
        """Takes in a change of a node."""
        until = 0.0 if event.kind is EventKind.DELETED else undecided_until(event.object)
        if until > self._now():
            self._until[event.object.metadata.name] = until
        else:
            self._until.pop(event.object.metadata.name, None)

    def any_undecided(self) -> bool:
        """True while a node may turn out to have GPUs."""
        now = self._now()
        while self._until:
            name, until = next(iter(self._until.items()))
            if until > now:
                return True
            del self._until[name]
        return False
