"""Default contents of a new namespace, and removal of all objects of a deleted one.

A new namespace gets the service account ``default`` and the ConfigMap ``kube-root-ca.crt``. One that is being deleted
is emptied, kind by kind as discovery lists them, and finalized when nothing of it is left.
"""

from collections.abc import Callable

from tessera.kube.errors import AlreadyExists, Conflict, Forbidden, MethodNotAllowed, NotFound
from tessera.kube.informer import EventKind, WatchEvent
from tessera.kube.resources import CONFIGMAPS, EVENTS, NAMESPACES, SERVICE_ACCOUNTS
from tessera.kube.resources.meta import PartialObject
from tessera_lab.workloads.base.mirrors import ObjectMirrors
from tessera_lab.workloads.base.ownership import Json, is_being_deleted
from tessera_lab.workloads.base.work_queue import WorkQueue
from tessera_lab.workloads.objects.garbage_collector import Kind, MetadataMirror

ROOT_CA = "kube-root-ca.crt"


class NamespaceContents:
    """Creates the default contents of namespaces.

    Args:
        mirrors: see :class:`ObjectMirrors`.
        ca: the certificate authority of the API server as PEM, empty where it has none.
    """

    def __init__(self, mirrors: ObjectMirrors, ca: str) -> None:
        self._mirrors = mirrors
        self._ca = ca
        self._queue: WorkQueue[str] = WorkQueue(self._reconcile, rng=mirrors.rng)
        mirrors.namespaces.add_handler(lambda event: self._queue.add(event.object["metadata"]["name"]))
        mirrors.service_accounts.add_handler(self._watch_deletions("default"))
        mirrors.config_maps.add_handler(self._watch_deletions(ROOT_CA))

    async def run(self) -> None:
        """Creates default contents until cancelled."""
        await self._queue.run()

    def _watch_deletions(self, name: str) -> Callable[[WatchEvent[dict[str, object]]], None]:
        def handle(event: WatchEvent[dict[str, object]]) -> None:
            metadata: Json = event.object["metadata"]  # type: ignore[assignment] # an object of every kind has it
            if event.kind is EventKind.DELETED and metadata["name"] == name:
                self._queue.add(metadata["namespace"])

        return handle

    async def _reconcile(self, name: str) -> None:
        namespace = self._mirrors.namespaces.cache.get(name)
        if namespace is None or is_being_deleted(namespace):
            return
        client = self._mirrors.client
        try:
            if f"{name}/default" not in self._mirrors.service_accounts.cache:
                await client.create(SERVICE_ACCOUNTS.as_dicts(), {"metadata": {"name": "default"}}, name)
            if f"{name}/{ROOT_CA}" not in self._mirrors.config_maps.cache:
                note = "Contains a CA bundle that can be used to verify the kube-apiserver."
                metadata = {"name": ROOT_CA, "annotations": {"kubernetes.io/description": note}}
                body = {"metadata": metadata, "data": {"ca.crt": self._ca}}
                await client.create(CONFIGMAPS.as_dicts(), body, name)
        except AlreadyExists:
            self._queue.add_after(name, 1.0)
        except (NotFound, Forbidden):
            return  # somebody deleted the namespace meanwhile


class NamespaceDeletion:
    """Empties namespaces that are being deleted, then removes their finalizer."""

    def __init__(self, mirrors: ObjectMirrors, inventory: MetadataMirror) -> None:
        self._mirrors = mirrors
        self._inventory = inventory
        self._queue: WorkQueue[str] = WorkQueue(self._reconcile, rng=mirrors.rng)
        mirrors.namespaces.add_handler(lambda event: self._queue.add(event.object["metadata"]["name"]))
        inventory.add_handler(self._on_event)

    async def run(self) -> None:
        """Empties until cancelled; starts when the inventory is complete."""
        await self._inventory.complete.wait()
        await self._queue.run()

    def _on_event(self, _kind: Kind, event: WatchEvent[PartialObject]) -> None:
        namespace = self._mirrors.namespaces.cache.get(event.object.metadata.namespace)
        if namespace is not None and is_being_deleted(namespace):
            self._queue.add(event.object.metadata.namespace)

    async def _reconcile(self, name: str) -> None:
        namespace = self._mirrors.namespaces.cache.get(name)
        if namespace is None or not is_being_deleted(namespace):
            return
        content = list(self._inventory.in_namespace(name))
        for kind, item in content:
            if not item.metadata.deletion_timestamp:
                await self._delete(kind, item)
        if not content:
            # Events are not in the inventory; they go last, since deleting other objects makes more of them.
            await self._mirrors.client.request("DELETE", EVENTS.path(name))
            await self._finalize(namespace)

    async def _delete(self, kind: Kind, item: PartialObject) -> None:
        meta = item.metadata
        try:
            await self._mirrors.client.delete(kind, meta.name, meta.namespace, uid=meta.uid, propagation="Background")
        except (NotFound, Conflict, MethodNotAllowed):
            return

    async def _finalize(self, namespace: Json) -> None:
        """Removes Kubernetes' own finalizer, which removes the object."""
        finalizers = [each for each in namespace["spec"].get("finalizers") or () if each != "kubernetes"]
        body = {**namespace, "spec": {**namespace["spec"], "finalizers": finalizers}}
        path = NAMESPACES.path(None, namespace["metadata"]["name"], "finalize")
        try:
            await self._mirrors.client.request("PUT", path, body=body)
        except NotFound:
            return
