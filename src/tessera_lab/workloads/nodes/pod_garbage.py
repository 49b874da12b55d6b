"""Deletes pods whose node is gone, and pods that are being deleted and never had a node.

Kubelet confirms the deletion of a pod; for pods without a kubelet this controller does. Of ``pkg/controller/podgc`` it
omits the limit of finished pods, since a lab never has that many.
"""

from typing import Any

from tessera.kube.client.errors import Conflict, NotFound
from tessera.kube.resources import PODS
from tessera.kube.resources.meta import key_of
from tessera.kube.watch.informer import EventKind
from tessera_lab.workloads.base.mirrors import NODE, ObjectMirrors
from tessera_lab.workloads.base.ownership import Json, is_being_deleted
from tessera_lab.workloads.base.pods import phase
from tessera_lab.workloads.base.work_queue import WorkQueue

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
        if event.kind is not EventKind.DELETED and self._is_lost(event.object):
            self._queue.add_after(key_of(event.object), QUARANTINE if event.object["spec"].get("nodeName") else 0)

    def _on_node(self, event: Any) -> None:
        if event.kind is EventKind.DELETED:
            for pod in self._mirrors.pods.cache.by_index(NODE, event.object["metadata"]["name"]):
                self._queue.add_after(key_of(pod), QUARANTINE)

    def _is_lost(self, pod: Json) -> bool:
        node = pod["spec"].get("nodeName")
        return node not in self._mirrors.nodes.cache if node else is_being_deleted(pod)

    async def _reconcile(self, key: str) -> None:
        pod = self._mirrors.pods.cache.get(key)
        if pod is None or not self._is_lost(pod):
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
