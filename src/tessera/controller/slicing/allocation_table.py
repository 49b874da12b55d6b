"""All allocations, by node and by pod.

At most one allocation of a pod is current; its other allocations are being taken back. So a pod can be placed again
while the controller still waits for its old slices on another node.
"""

from collections.abc import Iterator, Sequence

from tessera.api.names import NodeName, PodUid
from tessera.controller.slicing.allocation import Allocation


class AllocationTable:
    """Allocations; at most one per (node, pod)."""

    def __init__(self) -> None:
        self._by_node: dict[NodeName, dict[PodUid, Allocation]] = {}
        self._by_pod: dict[PodUid, dict[NodeName, Allocation]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by_node.values()))

    def __iter__(self) -> Iterator[Allocation]:
        for entries in self._by_node.values():
            yield from entries.values()

    def get(self, node: NodeName, uid: PodUid) -> Allocation | None:
        """Returns the allocation to a pod on a node."""
        return self._by_node.get(node, {}).get(uid)

    def on(self, node: NodeName) -> Sequence[Allocation]:
        """Returns the present allocations on a node."""
        return tuple(self._by_node.get(node, {}).values())

    def of(self, uid: PodUid) -> Sequence[Allocation]:
        """Returns the present allocations to a pod."""
        return tuple(self._by_pod.get(uid, {}).values())

    def current_of(self, uid: PodUid) -> Allocation | None:
        """Returns the current allocation to a pod: the one that is not being taken back."""
        return next((one for one in self._by_pod.get(uid, {}).values() if not one.given_up), None)

    def add(self, allocation: Allocation) -> None:
        """Adds an allocation.

        Raises:
            ValueError: the pod has one on this node.
        """
        entries = self._by_node.setdefault(allocation.node, {})
        if allocation.uid in entries:
            raise ValueError(f"pod {allocation.owner} has a promise on node {allocation.node} already")
        entries[allocation.uid] = allocation
        self._by_pod.setdefault(allocation.uid, {})[allocation.node] = allocation

    def remove(self, allocation: Allocation) -> None:
        """Removes an allocation; one that is not in the table is no error."""
        self._by_node.get(allocation.node, {}).pop(allocation.uid, None)
        if not self._by_node.get(allocation.node):
            self._by_node.pop(allocation.node, None)
        self._by_pod.get(allocation.uid, {}).pop(allocation.node, None)
        if not self._by_pod.get(allocation.uid):
            self._by_pod.pop(allocation.uid, None)
