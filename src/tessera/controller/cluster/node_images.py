"""Which nodes have which images, by their status: a pod starts there without a pull.

Points are those of kube-scheduler's ImageLocality, image by image: the size by the share of the nodes that have it, so
that the first node with an image does not draw all pods; 0 for 23 MiB, 100 for 1,000 MiB a container. What a node says
of a size counts for that node alone.
"""

from collections.abc import Mapping, Sequence

from tessera.api.names import NodeName

_MIB = 1 << 20
_LEAST, _MOST = 23 * _MIB, 1000 * _MIB
#: Points of a pod whose images are all there, and large.
IMAGE_POINTS = 100


class NodeImages:
    """The images of all nodes."""

    def __init__(self) -> None:
        self._of: dict[NodeName, Mapping[str, int]] = {}
        #: By name of an image, the nodes that have it, by its size there (:func:`_round`). Nothing in it is empty.
        self._masks: dict[str, dict[int, int]] = {}

    def put(self, node: NodeName, bit: int, images: Mapping[str, int]) -> None:
        """Takes in the sizes of a node's images, in bytes by name; none for a node that is gone."""
        before = self._of.pop(node, {})
        for name, size in before.items() - images.items():
            masks = self._masks[name]
            masks[_round(size)] &= ~bit
            if not masks[_round(size)]:
                del masks[_round(size)]
            if not masks:
                del self._masks[name]
        for name, size in images.items() - before.items():
            masks = self._masks.setdefault(name, {})
            masks[_round(size)] = masks.get(_round(size), 0) | bit
        if images:
            self._of[node] = images

    def points(self, images: Sequence[str], nodes: int) -> Sequence[tuple[str, int, int]]:
        """Returns those of a pod's images that some of the nodes have, with their points and these nodes."""
        found = []
        total = nodes.bit_count()
        for name in images:
            masks = {size: mask & nodes for size, mask in self._masks.get(name, {}).items() if mask & nodes}
            count = sum(mask.bit_count() for mask in masks.values())
            for own, mask in masks.items() if count < total else ():
                size = min(own * count // total, _MOST)
                points = IMAGE_POINTS * (size - _LEAST) // ((_MOST - _LEAST) * len(images))
                if points > 0:
                    found.append((name, points, mask))
        return found


def _round(size: int) -> int:
    """Returns a size to 5 binary digits, so that nodes that differ a little are in one mask."""
    shift = max(0, size.bit_length() - 5)
    return size >> shift << shift
