"""Which nodes have which images, by their status: a pod starts there without a pull.

Points are those of kube-scheduler's ImageLocality, image by image: the size by the share of the nodes that have it, so
that the first node with an image does not draw all pods; 0 for 23 MiB, 100 for 1,000 MiB a container.
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
        #: By name of an image, the nodes that have it, and its size. No mask is empty.
        self._masks: dict[str, int] = {}
        self._sizes: dict[str, int] = {}

    def put(self, node: NodeName, bit: int, images: Mapping[str, int]) -> None:
        """Takes in the sizes of a node's images, in bytes by name; none for a node that is gone."""
        before = self._of.get(node, {})
        for name in before.keys() - images.keys():
            self._masks[name] &= ~bit
            if not self._masks[name]:
                del self._masks[name], self._sizes[name]
        for name in images.keys() - before.keys():
            self._masks[name] = self._masks.get(name, 0) | bit
            self._sizes[name] = images[name]
        self._of[node] = images
        if not images:
            del self._of[node]

    def points(self, images: Sequence[str], nodes: int) -> Sequence[tuple[str, int, int]]:
        """Returns those of a pod's images that some of the nodes have, with their points and these nodes."""
        found = []
        total = nodes.bit_count()
        for name in images:
            mask = self._masks.get(name, 0) & nodes
            if mask and mask != nodes:
                size = self._sizes[name] * mask.bit_count() // total
                points = IMAGE_POINTS * (min(size, _MOST) - _LEAST) // ((_MOST - _LEAST) * len(images))
                if points > 0:
                    found.append((name, points, mask))
        return found
