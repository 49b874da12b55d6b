"""Good devices that stay empty, since kube-scheduler counts pods on withheld devices against those that are left. Pure.

Kubelet takes a withheld device, one that is faulty, cordoned or about to change, from the Node's allocatable amount. A
pod that holds it still counts as a user of the resource. So for each such pod kube-scheduler leaves one good device
empty. It is free for that pod's successor: once the pod is deleted, its owner's next pod gets it.

The node's agent says how many withheld devices pods hold (``tessera.dev/cards``); kubelet says how many are withheld,
capacity less allocatable, a few seconds later. The smaller number is what kube-scheduler knows by now.
"""

from collections.abc import Iterator

import msgspec

from tessera.api.nodes.card_faults import CARDS_ANNOTATION, decode_cards, read_node_faults
from tessera.kube.quantity import count_or_zero
from tessera.kube.resources import Node
from tessera.text import count_noun


class WithheldHold(msgspec.Struct, frozen=True, kw_only=True):
    """Withheld devices of one resource that pods hold on a node.

    Attributes:
        node: the node's name.
        resource: the extended resource.
        left: the devices that kubelet still offers: the allocatable amount.
        held: the withheld devices that pods hold.
    """

    node: str
    resource: str
    left: int
    held: int

    def count_free(self, used: int) -> int:
        """The good devices that no pod holds, of those that pods use by kube-scheduler's count."""
        return max(0, self.left - max(0, used - self.held))

    def count_blocked(self, free: int) -> int:
        """How many of these free devices kube-scheduler gives to no pod."""
        return min(self.held, max(0, free))

    def describe(self, free: int | None = None) -> str:
        """The sentence about it; ``free`` is the number of good devices that no pod holds, None if not known."""
        these = "this one" if self.held == 1 else f"these {self.held}"
        against = f"kube-scheduler counts {these} against the {self.left} that are left"
        holds = f"node {self.node}: pods hold {self.held} withheld {self.resource}"
        if free is None:
            return f"{holds}; {against}, and leaves up to {count_noun(self.held, 'free one')} empty"
        blocked = self.count_blocked(free)
        return f"{holds}; {against}, and leaves {blocked} of {count_noun(free, 'free one')} empty"


def read_withheld_holds(node: Node) -> dict[str, WithheldHold]:
    """The withheld devices that pods hold on a node, by resource; a resource without one is missing."""
    held = decode_cards(node.metadata.annotations.get(CARDS_ANNOTATION, "")).held
    found = {}
    for resource, count in sorted(held.items()):
        capacity, left = (
            count_or_zero(each.get(resource, "0")) for each in (node.status.capacity, node.status.allocatable)
        )
        if known := min(count, capacity - left):
            found[resource] = WithheldHold(node=node.metadata.name, resource=resource, left=left, held=known)
    return {name: each for name, each in found.items() if each.held > 0}


def unblocking_steps(node: Node) -> Iterator[str]:
    """What a person does so that the free devices of a node are given out again."""
    name = node.metadata.name
    yield (
        f"delete the pods on withheld cards of {name}, so that their owners start them on good ones; see them:"
        f" tessera health {name}"
    )
    cordoned = sorted({fault.index for fault, error in read_node_faults(node) if error.asks == "uncordon"})
    for index in (each for each in cordoned[:1] if each >= 0):
        yield f"or give a cordoned card back: tessera uncordon {name}/{index}"
