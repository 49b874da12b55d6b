"""Nodes that nobody hears of any more: their conditions become Unknown, and their pods go after a while.

Of ``pkg/controller/nodelifecycle`` and ``tainteviction``: a node whose Lease was not renewed for the grace period is
Unknown, which :mod:`node_taints` turns into taints. A pod that does not tolerate ``unreachable`` with NoExecute is
deleted; one that tolerates it for some seconds is deleted after them. Its kubelet confirms the deletion when it is
back. A node that never had a Lease is not watched. Left out: pods of such a node are not marked as not ready.
"""

from typing import Any

from tessera.clock import rfc3339
from tessera.kube.client.errors import Conflict, NotFound
from tessera.kube.resources import NODES, PODS
from tessera.kube.watch.informer import EventKind
from tessera_lab.scheduler.filters.taints import untolerated
from tessera_lab.workloads.base.mirrors import NODE, Mirrors
from tessera_lab.workloads.base.ownership import Json, deleting
from tessera_lab.workloads.nodes.node_taints import UNREACHABLE_TAINT
from tessera_lab.workqueue import WorkQueue

#: Seconds without a renewal until a node is Unknown (``--node-monitor-grace-period`` since Kubernetes 1.32).
GRACE = 50.0
_MESSAGE = "Kubelet stopped posting node status."
_NO_EXECUTE = {"key": UNREACHABLE_TAINT, "effect": "NoExecute"}


class NodeLifecycle:
    """Watches the Leases of nodes."""

    def __init__(self, mirrors: Mirrors) -> None:
        self._mirrors = mirrors
        self._renewed: dict[str, float] = {}
        self._lost: dict[str, float] = {}
        self._queue: WorkQueue[str] = WorkQueue(self._reconcile, rng=mirrors.rng)
        mirrors.node_leases.add_handler(self._on_lease)

    async def run(self) -> None:
        """Watches until cancelled."""
        await self._queue.run()

    def _on_lease(self, event: Any) -> None:
        name = event.object["metadata"]["name"]
        if event.kind is EventKind.DELETED:
            self._renewed.pop(name, None)
            self._lost.pop(name, None)
            return
        self._renewed[name] = self._mirrors.clock.monotonic()
        if self._lost.pop(name, None) is not None or event.kind is EventKind.ADDED:
            self._queue.add(name)

    async def _reconcile(self, name: str) -> float | None:
        node = self._mirrors.nodes.cache.get(name)
        renewed, now = self._renewed.get(name), self._mirrors.clock.monotonic()
        if renewed is None or node is None:
            return None
        if now < renewed + GRACE:
            return renewed + GRACE - now
        since = self._lost.setdefault(name, now)
        await self._mark(node)
        return await self._evict(name, now - since)

    async def _mark(self, node: Json) -> None:
        """Makes the conditions that kubelet posts Unknown."""
        conditions = (node.get("status") or {}).get("conditions") or []
        now = rfc3339(self._mirrors.clock.now())
        unknown = {"status": "Unknown", "reason": "NodeStatusUnknown", "message": _MESSAGE, "lastTransitionTime": now}
        kubelets = ("MemoryPressure", "DiskPressure", "PIDPressure", "Ready")
        wanted = [
            {**each, **unknown} if each["type"] in kubelets and each["status"] != "Unknown" else each
            for each in conditions
        ]
        if wanted == conditions:
            return
        patch = {"status": {"conditions": wanted}}
        version = node["metadata"]["resourceVersion"]
        await self._mirrors.client.merge_patch(
            NODES, node["metadata"]["name"], patch, subresource="status", resource_version=version
        )
        self._mirrors.tell(NODES, node, "NodeNotReady", f"Node {node['metadata']['name']} status is now: NodeNotReady")

    async def _evict(self, name: str, lost: float) -> float | None:
        """Deletes the pods whose time on the lost node is over; seconds until the next one's is."""
        waits = []
        for pod in list(self._mirrors.pods.cache.by(NODE, name)):
            stays = stay(pod)
            if stays is None or deleting(pod):
                continue
            if lost < stays:
                waits.append(stays - lost)
                continue
            metadata = pod["metadata"]
            try:
                await self._mirrors.client.delete(PODS, metadata["name"], metadata["namespace"], uid=metadata["uid"])
            except (NotFound, Conflict):
                continue
            note = f"Marking for deletion Pod {metadata['namespace']}/{metadata['name']}"
            self._mirrors.tell(PODS, pod, "TaintManagerEviction", note)
        return min(waits, default=None)


def stay(pod: Json) -> float | None:
    """Seconds that a pod stays on an unreachable node; None for ever."""
    tolerations = pod["spec"].get("tolerations") or ()
    matching = [each for each in tolerations if untolerated([_NO_EXECUTE], [each]) is None]
    if not matching:
        return 0.0
    bounds = [float(each["tolerationSeconds"]) for each in matching if each.get("tolerationSeconds") is not None]
    return max(0.0, min(bounds)) if bounds else None
