"""Lost nodes: their conditions become Unknown, taints keep pods away, and their pods are deleted after a while.

Of ``pkg/controller/nodelifecycle`` and ``tainteviction``. A node whose Lease was not renewed for the grace period gets
Unknown conditions. A pod that does not tolerate ``unreachable`` with NoExecute is deleted; one that tolerates it for
some seconds is deleted after them. The node's kubelet confirms the deletion when it is back. A node that never had a
Lease is not watched. Left out: pods of such a node are not marked as not ready.

Taints (:class:`NodeTaints`): a node whose condition Ready is False has ``node.kubernetes.io/not-ready`` with effect
NoSchedule. The same with NoExecute is left out: it evicts after five minutes, and a node of the lab that boots is back
before that. A node whose conditions are Unknown has ``unreachable`` with both effects. Both go as soon as the node is
Ready.

Pods without a kubelet (:class:`PodGarbageCollector`): the controller deletes pods whose node is gone, and pods that are
being deleted and never had a node, since no kubelet confirms their deletion. Of ``pkg/controller/podgc`` it omits the
limit of finished pods, since a lab never has that many.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tessera.clock import rfc3339
from tessera.kube.client.errors import Conflict, NotFound
from tessera.kube.resources import NODES, PODS
from tessera.kube.resources.meta import key_of
from tessera.kube.watch.informer import EventKind
from tessera_lab.kubelet.node.node_object import NOT_READY_TAINT
from tessera_lab.scheduler.filters.node_placement import find_untolerated
from tessera_lab.workloads.base.mirrors import NODE, ObjectMirrors
from tessera_lab.workloads.base.ownership import Json, is_being_deleted
from tessera_lab.workloads.base.pods import phase
from tessera_lab.workloads.base.work_queue import WorkQueue

UNREACHABLE_TAINT = "node.kubernetes.io/unreachable"

#: Taints of a node by the status of its condition Ready.
_WANTED: Mapping[str, Sequence[tuple[str, str]]] = {
    "False": ((NOT_READY_TAINT, "NoSchedule"),),
    "Unknown": ((UNREACHABLE_TAINT, "NoSchedule"), (UNREACHABLE_TAINT, "NoExecute")),
}


class NodeTaints:
    """Keeps the taint of nodes that are not Ready."""

    def __init__(self, mirrors: ObjectMirrors) -> None:
        self._mirrors = mirrors
        self._queue: WorkQueue[str] = WorkQueue(self._reconcile, rng=mirrors.rng)
        mirrors.nodes.add_handler(self._on_node)

    async def run(self) -> None:
        """Reconciles until cancelled."""
        await self._queue.run()

    def _on_node(self, event: Any) -> None:
        if event.kind is not EventKind.DELETED and desired_taints(event.object) is not None:
            self._queue.add(key_of(event.object))

    async def _reconcile(self, key: str) -> None:
        node = self._mirrors.nodes.cache.get(key)
        desired = desired_taints(node) if node is not None else None
        if node is None or desired is None:
            return
        metadata, patch = node["metadata"], {"spec": {"taints": desired or None}}
        try:
            await self._mirrors.client.merge_patch(
                NODES, metadata["name"], patch, resource_version=metadata["resourceVersion"]
            )
        except (NotFound, Conflict):
            return  # the event of the node's next state queues it again


def desired_taints(node: Json) -> list[Json] | None:
    """Returns the taints that the node should have; None if it has them, or has no condition Ready."""
    conditions = (node.get("status") or {}).get("conditions") or ()
    ready = next((each.get("status") for each in conditions if each.get("type") == "Ready"), None)
    if ready is None:
        return None
    taints = (node.get("spec") or {}).get("taints") or []
    others = [each for each in taints if each.get("key") not in {NOT_READY_TAINT, UNREACHABLE_TAINT}]
    ours = [each for each in taints if each not in others]
    desired = _WANTED.get(ready, ())
    if {(each["key"], each.get("effect")) for each in ours} == set(desired):
        return None
    return [*others, *({"key": key, "effect": effect} for key, effect in desired)]


#: Seconds without a renewal until a node is Unknown (``--node-monitor-grace-period`` since Kubernetes 1.32).
GRACE = 50.0
_MESSAGE = "Kubelet stopped posting node status."
_NO_EXECUTE = {"key": UNREACHABLE_TAINT, "effect": "NoExecute"}


class NodeLifecycle:
    """Watches the Leases of nodes."""

    def __init__(self, mirrors: ObjectMirrors) -> None:
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
        await self._set_unknown(node)
        return await self._evict(name, now - since)

    async def _set_unknown(self, node: Json) -> None:
        """Sets the conditions that kubelet writes to Unknown."""
        conditions = (node.get("status") or {}).get("conditions") or []
        now = rfc3339(self._mirrors.clock.now())
        unknown = {"status": "Unknown", "reason": "NodeStatusUnknown", "message": _MESSAGE, "lastTransitionTime": now}
        kubelets = ("MemoryPressure", "DiskPressure", "PIDPressure", "Ready")
        desired = [
            {**each, **unknown} if each["type"] in kubelets and each["status"] != "Unknown" else each
            for each in conditions
        ]
        if desired == conditions:
            return
        patch = {"status": {"conditions": desired}}
        version = node["metadata"]["resourceVersion"]
        await self._mirrors.client.merge_patch(
            NODES, node["metadata"]["name"], patch, subresource="status", resource_version=version
        )
        self._mirrors.record_event(
            NODES, node, "NodeNotReady", f"Node {node['metadata']['name']} status is now: NodeNotReady"
        )

    async def _evict(self, name: str, lost: float) -> float | None:
        """Deletes pods whose time on the lost node is over; returns the seconds until the next one's is over."""
        waits = []
        for pod in list(self._mirrors.pods.cache.by_index(NODE, name)):
            stays = seconds_tolerated(pod)
            if stays is None or is_being_deleted(pod):
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
            self._mirrors.record_event(PODS, pod, "TaintManagerEviction", note)
        return min(waits, default=None)


def seconds_tolerated(pod: Json) -> float | None:
    """Seconds that a pod stays on an unreachable node; None for ever."""
    tolerations = pod["spec"].get("tolerations") or ()
    matching = [each for each in tolerations if find_untolerated([_NO_EXECUTE], [each]) is None]
    if not matching:
        return 0.0
    bounds = [float(each["tolerationSeconds"]) for each in matching if each.get("tolerationSeconds") is not None]
    return max(0.0, min(bounds)) if bounds else None


#: Seconds that a missing node may take to appear (again) before its pods are deleted (``quarantineTime``).
QUARANTINE = 40.0


class PodGarbageCollector:
    """Ends pods that have no kubelet."""

    def __init__(self, mirrors: ObjectMirrors) -> None:
        self._mirrors = mirrors
        self._queue: WorkQueue[str] = WorkQueue(self._reconcile, rng=mirrors.rng)
        mirrors.pods.add_handler(self._on_pod)
        mirrors.nodes.add_handler(self._on_node)

    async def run(self) -> None:
        """Collects until cancelled."""
        await self._queue.run()

    def _on_pod(self, event: Any) -> None:
        if event.kind is not EventKind.DELETED and self._has_no_kubelet(event.object):
            self._queue.add_after(key_of(event.object), QUARANTINE if event.object["spec"].get("nodeName") else 0)

    def _on_node(self, event: Any) -> None:
        if event.kind is EventKind.DELETED:
            for pod in self._mirrors.pods.cache.by_index(NODE, event.object["metadata"]["name"]):
                self._queue.add_after(key_of(pod), QUARANTINE)

    def _has_no_kubelet(self, pod: Json) -> bool:
        node = pod["spec"].get("nodeName")
        return node not in self._mirrors.nodes.cache if node else is_being_deleted(pod)

    async def _reconcile(self, key: str) -> None:
        pod = self._mirrors.pods.cache.get(key)
        if pod is None or not self._has_no_kubelet(pod):
            return
        metadata = pod["metadata"]
        client = self._mirrors.client
        try:
            if phase(pod) not in {"Succeeded", "Failed"} and pod["spec"].get("nodeName"):
                patch = {"status": {"phase": "Failed"}}
                await client.merge_patch(
                    PODS, metadata["name"], patch, metadata["namespace"], subresource="status", uid=metadata["uid"]
                )
            await client.delete(PODS, metadata["name"], metadata["namespace"], uid=metadata["uid"], grace_seconds=0)
        except (NotFound, Conflict):
            return
