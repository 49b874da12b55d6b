"""All nodes by label, name and taint, to test one pod's constraints for all nodes at once.

A test of a pod's affinity is a few operations on bit masks (:mod:`tessera.kube.resources.selectors`), whatever the
number of nodes. So the cost of a pod depends only on its spec, whose size is bounded
(:mod:`tessera.api.slice_requests`). The index remembers the answer until a label that it depends on, a taint, or the
set of nodes changes.

A :class:`NodeImages` says, by the status of nodes, which have which images: a pod starts there without a pull.

Points are those of kube-scheduler's ImageLocality, image by image: the size by the share of the nodes that have it, so
that the first node with an image does not draw all pods; 0 for 23 MiB, 100 for 1,000 MiB a container. What a node says
of a size counts for that node alone.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from tessera.api.names import NodeName
from tessera.controller.objects.node_info import NodeInfo
from tessera.controller.objects.pod_constraints import (
    BLOCKING_EFFECTS,
    CORDON,
    FIELD_OPERATORS,
    NAME_FIELD,
    NodeConstraints,
    TolerationIndex,
)
from tessera.kube.resources import NodeSelectorRequirement, NodeSelectorTerm
from tessera.kube.resources.selectors import LabelIndex, NodeMask, union

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


#: Most answers: different constraints of pods (selector, affinity, tolerations) whose admitting nodes the controller
#: caches. More kinds of pods than wait at once; the longest unused is forgotten, and computed again when needed.
REMEMBERED_CONSTRAINTS = 4_096
#: Most keys of node labels whose last change the controller remembers. Clusters have a few hundred; beyond it all keys
#: are forgotten, and every pod is compared again.
REMEMBERED_LABEL_KEYS = 10_000

Key = TypeVar("Key")
_Taint = tuple[str, str, str]


class NodeIndex:
    """Nodes, with the nodes that a pod's constraints admit.

    Attributes:
        cost: tests and values compared since this index was made; remembered answers cost nothing.
        images: which nodes have which images.
    """

    def __init__(self) -> None:
        self.cost = 0
        self.images = NodeImages()
        #: All nodes.
        self._nodes: dict[NodeName, NodeInfo] = {}
        #: Each node's bit, as a set of that node alone; ``_names`` is the inverse. The keys are those of ``_nodes``.
        self._bits: dict[NodeName, NodeMask] = {}
        self._names: dict[NodeMask, NodeName] = {}
        #: Numbers of removed nodes. With those of ``_bits`` they are 0, 1, 2, ... without a gap.
        self._unused: list[int] = []
        #: Labels of all nodes.
        self._labels = LabelIndex()
        #: The nodes with each taint that excludes pods, a cordon included. No mask is empty.
        self._taints: dict[_Taint, NodeMask] = {}
        #: Nodes that are open for slices.
        self._offering: NodeMask = 0
        #: By resource besides slices, the nodes that are open for it. No mask is empty.
        self._with_devices: dict[str, NodeMask] = {}
        #: Grows with every change that an answer may depend on.
        self._changes = 0
        #: By label, ``_changes`` when a node's value last changed; missing if none did since the last clearing.
        self._label_changed: dict[str, int] = {}
        #: ``_changes`` when a taint or the set of nodes last changed, or ``_label_changed`` was cleared.
        self._others_changed = 0
        #: Remembered answers with ``_changes`` when they were true, the last used at the end.
        self._selected: dict[NodeConstraints, tuple[int, NodeMask]] = {}
        self._accepted: dict[NodeConstraints, tuple[int, NodeMask]] = {}

    # Nodes

    def put(self, node: NodeInfo) -> None:
        """Takes in a node as it is now."""
        before = self._nodes.get(node.name)
        if before is None:
            bit = 1 << (self._unused.pop() if self._unused else len(self._bits))
            self._bits[node.name] = bit
            self._names[bit] = node.name
            self._labels.add(node.labels, bit)
            self._others_changed = self._next()
        else:
            self._note_label_changes(self._labels.change(before.labels, node.labels, self._bits[node.name]))
        self._nodes[node.name] = node
        self.put_images(node)
        self._change_taints(self._bits[node.name], set(_taints(before)), set(_taints(node)))
        self._offering &= ~self._bits[node.name]
        if not any(node.closed_reasons()):
            self._offering |= self._bits[node.name]
        self._put_devices(node)

    def remove(self, name: NodeName) -> None:
        """Removes a node; an unknown node is no error."""
        node = self._nodes.pop(name, None)
        if node is None:
            return
        bit = self._bits.pop(name)
        self.images.put(name, bit, {})
        del self._names[bit]
        self._labels.remove(node.labels, bit)
        self._change_taints(bit, set(_taints(node)), set())
        self._offering &= ~bit
        for resource in node.resources:
            self._drop_device(resource, bit)
        self._unused.append(bit.bit_length() - 1)
        self._others_changed = self._next()

    def put_images(self, node: NodeInfo) -> None:
        """Takes in the images of a node."""
        self.images.put(node.name, self._bits[node.name], node.images)

    def _put_devices(self, node: NodeInfo) -> None:
        bit = self._bits[node.name]
        for resource in tuple(self._with_devices):
            self._drop_device(resource, bit)
        for resource in node.resources:
            if not any(node.closed_reasons((resource,))):
                self._with_devices[resource] = self._with_devices.get(resource, 0) | bit

    def _drop_device(self, resource: str, bit: NodeMask) -> None:
        if self._with_devices.get(resource, 0) & bit:
            _clear(self._with_devices, resource, bit)

    def _note_label_changes(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._label_changed[key] = self._next()
        if len(self._label_changed) > REMEMBERED_LABEL_KEYS:
            self._label_changed.clear()
            self._others_changed = self._next()

    def _change_taints(self, bit: int, before: set[_Taint], after: set[_Taint]) -> None:
        for taint in before - after:
            _clear(self._taints, taint, bit)
        for taint in after - before:
            self._taints[taint] = self._taints.get(taint, 0) | bit
        if before != after:
            self._others_changed = self._next()

    def _next(self) -> int:
        self._changes += 1
        return self._changes

    # Answers

    def names(self, mask: int) -> frozenset[NodeName]:
        """Returns the nodes of a mask; the cost grows with their number."""
        return frozenset(self.each(mask))

    def each(self, mask: int) -> Iterator[NodeName]:
        """Yields the nodes of a mask."""
        while mask:
            lowest = mask & -mask
            mask ^= lowest
            if lowest in self._names:
                yield self._names[lowest]

    def mask_of(self, name: NodeName) -> int:
        """Returns a node's bit; 0 for an unknown node."""
        return self._bits.get(name, 0)

    def open_to(self, constraints: NodeConstraints) -> int:
        """Returns the nodes that a pod may be pinned to: ready, open for its kind, selected, no untolerated taint."""
        offering = self._offering
        if constraints.devices:
            offering = -1
            for resource in constraints.devices:
                offering &= self._with_devices.get(resource, 0)
        return offering & self.selected_nodes(constraints) & self.tolerated_nodes(constraints)

    def selected_nodes(self, constraints: NodeConstraints) -> int:
        """Returns the nodes that selector and affinity admit."""
        known = self._selected.pop(constraints, None)
        if known is None or self._is_stale(known[0], constraints):
            known = (self._changes, self._select(constraints))
        self._remember(self._selected, constraints, known)
        return known[1]

    def domains(self, key: str) -> Mapping[str, int]:
        """Returns the nodes of each value of a label."""
        return self._labels.values(key)

    def label(self, name: NodeName, key: str) -> str | None:
        """Returns a node's value of a label."""
        node = self._nodes.get(name)
        return node.labels.get(key) if node is not None else None

    def tolerated_nodes(self, constraints: NodeConstraints) -> int:
        """Returns the nodes that have no untolerated taint."""
        known = self._accepted.pop(constraints, None)
        if known is None or known[0] < self._others_changed:
            accepts = TolerationIndex(constraints.tolerations).accept
            self.cost += len(self._taints) + len(constraints.tolerations)
            refused = (mask for taint, mask in self._taints.items() if not accepts(*taint))
            known = (self._changes, self._every & ~union(refused))
        self._remember(self._accepted, constraints, known)
        return known[1]

    def _is_stale(self, version: int, constraints: NodeConstraints) -> bool:
        if version < self._others_changed:
            return True
        return version < self._changes and any(self._label_changed.get(key, 0) > version for key in _keys(constraints))

    @staticmethod
    def _remember(memo: dict[NodeConstraints, tuple[int, int]], key: NodeConstraints, value: tuple[int, int]) -> None:
        memo[key] = value
        if len(memo) > REMEMBERED_CONSTRAINTS:
            del memo[next(iter(memo))]

    # Tests

    @property
    def _every(self) -> int:
        return (1 << (len(self._bits) + len(self._unused))) - 1

    def _select(self, constraints: NodeConstraints) -> int:
        mask = self._every
        self.cost += 1 + len(constraints.selector)
        for key, value in constraints.selector:
            mask &= self._labels.values(key).get(value, 0)
        return mask if constraints.terms is None else mask & union(map(self._term_nodes, constraints.terms))

    def _term_nodes(self, term: NodeSelectorTerm) -> int:
        self.cost += 1
        if not term.match_expressions and not term.match_fields:
            return 0
        mask = self._every
        for test in term.match_expressions:
            mask &= self._label_nodes(test)
        for test in term.match_fields:
            mask &= self._field_nodes(test)
        return mask

    def _label_nodes(self, test: NodeSelectorRequirement) -> int:
        self.cost += 1 + len(test.values)
        return self._labels.nodes_matching(test.key, test.operator, test.values)

    def _field_nodes(self, test: NodeSelectorRequirement) -> int:
        self.cost += 1 + len(test.values)
        if test.operator not in FIELD_OPERATORS:
            return 0
        names = test.values if test.key == NAME_FIELD else ()
        found = union(self.mask_of(NodeName(name)) for name in names)
        return found if test.operator == "In" else self._every & ~found


def _keys(constraints: NodeConstraints) -> Iterator[str]:
    for key, _ in constraints.selector:
        yield key
    for term in constraints.terms or ():
        for test in term.match_expressions:
            yield test.key


def _taints(node: NodeInfo | None) -> Iterator[_Taint]:
    """Yields the taints of a node; a cordon counts as its taint."""
    if node is None:
        return
    if node.cordoned:
        yield (CORDON.key, CORDON.value, CORDON.effect)
    for taint in node.taints:
        if taint.effect in BLOCKING_EFFECTS:
            yield (taint.key, taint.value, taint.effect)


def _clear(masks: dict[Key, int], key: Key, bit: int) -> None:
    left = masks[key] & ~bit
    if left:
        masks[key] = left
    else:
        del masks[key]
