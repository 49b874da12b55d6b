"""Pods with whole cards or shares, by the node that they are bound to or the hostname that they are pinned to.

After a change of a node's devices its pods are counted again. A start changes all nodes, some in each step: each step
asks for the pods of its nodes and never walks over all pods.
"""

from collections.abc import Set as AbstractSet

from tessera.api.names import PodUid
from tessera.controller.objects.pod_info import PodInfo


class DevicePods:
    """The index. A pod behind a gate, or that names no node, is not in it."""

    def __init__(self) -> None:
        #: UIDs by node name, and by hostname; no set is empty.
        self._bound: dict[str, set[PodUid]] = {}
        self._pinned: dict[str, set[PodUid]] = {}

    def replace(self, before: PodInfo | None, pod: PodInfo | None) -> None:
        """Takes in a pod in place of its former state; None if there was none, or if it is gone."""
        if before is not None and before.devices:
            table, key = self._place(before)
            found = table.get(key, set())
            found.discard(before.uid)
            if not found:
                table.pop(key, None)
        if pod is not None and pod.devices and not pod.gates:
            table, key = self._place(pod)
            if key:
                table.setdefault(key, set()).add(pod.uid)

    def of(self, node: str, hostname: str) -> AbstractSet[PodUid]:
        """Returns the pods that are bound to a node, or pinned to its hostname; no hostname is empty."""
        return self._bound.get(node, set()) | self._pinned.get(hostname, set())

    def _place(self, pod: PodInfo) -> tuple[dict[str, set[PodUid]], str]:
        return (self._bound, pod.node) if pod.node else (self._pinned, pod.hostname)
