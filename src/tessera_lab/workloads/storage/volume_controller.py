"""Binds claims to volumes, and releases volumes whose claim is gone.

The part of kube-controller-manager's persistent volume controllers that scheduling depends on: an Immediate claim gets
the smallest volume that serves it; one that waits for its first consumer gets what the scheduler reserves; a volume
whose claim is gone is Released, and deleted where its policy says so. Deleted volumes and claims stay until they are
not in use. Resizing and Recycle are not played.
"""

from typing import Any

from tessera.kube.client.errors import NotFound
from tessera.kube.resources import PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES
from tessera.kube.resources.meta import Resource, key_of
from tessera.kube.watch.informer import EventKind, WatchEvent
from tessera_lab.scheduler.filters.volumes import fitting_volume
from tessera_lab.scheduler.state.storage_cache import BIND_COMPLETED, SELECTED_NODE, annotations, claims_of
from tessera_lab.workloads.base.mirrors import ObjectMirrors
from tessera_lab.workloads.base.ownership import Json, is_being_deleted
from tessera_lab.workloads.base.pods import phase
from tessera_lab.workloads.base.work_queue import WorkQueue

#: Annotation of a volume that a provisioner made.
PROVISIONED_BY = "pv.kubernetes.io/provisioned-by"
_CLAIM, _VOLUME = "claim", "volume"


class VolumeController:
    """Binds claims and volumes."""

    def __init__(self, mirrors: ObjectMirrors) -> None:
        self._mirrors = mirrors
        self._queue: WorkQueue[tuple[str, str]] = WorkQueue(self._reconcile, rng=mirrors.rng)
        mirrors.claims.add_handler(self._on_claim)
        mirrors.volumes.add_handler(self._on_volume)
        mirrors.storage_classes.add_handler(lambda _: self._all_claims())
        mirrors.pods.add_handler(self._on_pod)

    async def run(self) -> None:
        """Reconciles until cancelled."""
        await self._queue.run()

    def _on_claim(self, event: WatchEvent[dict[str, Any]]) -> None:
        claim = event.object
        self._queue.add((_CLAIM, key_of(claim)))
        if claim["spec"].get("volumeName"):
            self._queue.add((_VOLUME, claim["spec"]["volumeName"]))

    def _on_volume(self, event: WatchEvent[dict[str, Any]]) -> None:
        volume = event.object
        self._queue.add((_VOLUME, key_of(volume)))
        reference = volume["spec"].get("claimRef")
        if reference is not None:
            self._queue.add((_CLAIM, f"{reference.get('namespace', '')}/{reference['name']}"))
        else:
            self._all_claims()

    def _all_claims(self) -> None:
        for claim in self._mirrors.claims.cache.values():
            if not claim["spec"].get("volumeName"):
                self._queue.add((_CLAIM, key_of(claim)))

    def _on_pod(self, event: WatchEvent[dict[str, Any]]) -> None:
        pod = event.object
        if event.kind is EventKind.DELETED or phase(pod) in {"Succeeded", "Failed"}:
            for key, _ in claims_of(pod["metadata"]["namespace"], pod["metadata"]["name"], pod["spec"]):
                self._queue.add((_CLAIM, key))

    async def _reconcile(self, item: tuple[str, str]) -> None:
        kind, key = item
        if kind == _CLAIM:
            claim = self._mirrors.claims.cache.get(key)
            if claim is not None:
                await self._claim(claim)
        else:
            volume = self._mirrors.volumes.cache.get(key)
            if volume is not None:
                await self._volume(volume)

    # Claims

    async def _claim(self, claim: Json) -> None:
        if is_being_deleted(claim):
            if not self._in_use(claim):
                await self._release(PERSISTENT_VOLUME_CLAIMS, claim, "kubernetes.io/pvc-protection")
            return
        name = claim["spec"].get("volumeName")
        if name and BIND_COMPLETED in annotations(claim):
            lost = name not in self._mirrors.volumes.cache
            if lost:
                await self._mirrors.write_status(PERSISTENT_VOLUME_CLAIMS, claim, {"phase": "Lost"})
            return
        volume = self._mirrors.volumes.cache.get(name) if name else self._candidate(claim)
        if volume is not None:
            await self._bind(claim, volume)
        elif not name and self._waits(claim):
            note = "waiting for first consumer to be created before binding"
            self._mirrors.record_event(PERSISTENT_VOLUME_CLAIMS, claim, "WaitForFirstConsumer", note)

    def _candidate(self, claim: Json) -> Json | None:
        """The volume for a claim: one that is reserved for it, else for an Immediate claim the smallest that serves."""
        found = fitting_volume(claim, self._mirrors.volumes.cache.values(), None, set())
        return found if found is not None and (found["spec"].get("claimRef") or not self._waits(claim)) else None

    def _waits(self, claim: Json) -> bool:
        item = self._mirrors.storage_classes.cache.get(claim["spec"].get("storageClassName") or "")
        delayed = item is not None and item["volumeBindingMode"] == "WaitForFirstConsumer"
        return delayed and SELECTED_NODE not in annotations(claim)

    async def _bind(self, claim: Json, volume: Json) -> None:
        """Writes first the volume, then the claim, so that no volume has two claims."""
        client, meta = self._mirrors.client, claim["metadata"]
        reference = volume["spec"].get("claimRef") or {}
        if reference.get("uid") not in {None, "", meta["uid"]}:
            return
        name = volume["metadata"]["name"]
        if reference.get("uid") != meta["uid"]:
            owner = {"kind": "PersistentVolumeClaim", "apiVersion": "v1", "uid": meta["uid"]}
            owner |= {"namespace": meta["namespace"], "name": meta["name"]}
            await client.merge_patch(PERSISTENT_VOLUMES, name, {"spec": {"claimRef": owner}})
        await self._mirrors.write_status(PERSISTENT_VOLUMES, volume, {"phase": "Bound"})
        patch = {"metadata": {"annotations": {BIND_COMPLETED: "yes"}}, "spec": {"volumeName": name}}
        await client.merge_patch(
            PERSISTENT_VOLUME_CLAIMS.as_dicts(), meta["name"], patch, meta["namespace"], uid=meta["uid"]
        )
        spec = volume["spec"]
        status = {"phase": "Bound", "accessModes": spec["accessModes"], "capacity": spec["capacity"]}
        await self._mirrors.write_status(PERSISTENT_VOLUME_CLAIMS, claim, status)

    def _in_use(self, claim: Json) -> bool:
        meta = claim["metadata"]
        key = f"{meta['namespace']}/{meta['name']}"
        return any(
            key in dict(claims_of(pod["metadata"]["namespace"], pod["metadata"]["name"], pod["spec"]))
            for pod in self._mirrors.pods.cache.values()
            if phase(pod) not in {"Succeeded", "Failed"}
        )

    # Volumes

    async def _volume(self, volume: Json) -> None:
        reference = volume["spec"].get("claimRef") or {}
        claim = self._mirrors.claims.cache.get(f"{reference.get('namespace', '')}/{reference.get('name', '')}")
        held = claim is not None and reference.get("uid") in {None, "", claim["metadata"]["uid"]}
        if is_being_deleted(volume) and not (held and reference.get("uid")):
            await self._release(PERSISTENT_VOLUMES, volume, "kubernetes.io/pv-protection")
        elif not reference or (not reference.get("uid") and not held):
            await self._mirrors.write_status(PERSISTENT_VOLUMES, volume, {"phase": "Available"})
        elif not held and reference.get("uid"):
            await self._mirrors.write_status(PERSISTENT_VOLUMES, volume, {"phase": "Released"})
            if volume["spec"].get("persistentVolumeReclaimPolicy") == "Delete" and not is_being_deleted(volume):
                await self._mirrors.client.delete(PERSISTENT_VOLUMES, volume["metadata"]["name"])

    async def _release(self, resource: Resource[Any], item: Json, finalizer: str) -> None:
        meta = item["metadata"]
        remaining = [each for each in meta.get("finalizers") or () if each != finalizer]
        if len(remaining) == len(meta.get("finalizers") or ()):
            return
        patch = {"metadata": {"finalizers": remaining}}
        try:
            await self._mirrors.client.merge_patch(resource.as_dicts(), meta["name"], patch, meta.get("namespace"))
        except NotFound:
            return
