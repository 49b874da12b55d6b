"""Controllers of volumes: bind claims, release volumes whose claim is gone, and provision (simulated).

The part of kube-controller-manager's persistent volume controllers that scheduling depends on: an Immediate claim gets
the smallest volume that serves it; one that waits for its first consumer gets what the scheduler reserves; a volume
whose claim is gone is Released, and deleted where its policy says so. Deleted volumes and claims stay until they are
not in use. Resizing and Recycle are not played. :class:`EphemeralClaims` makes the claims of generic ephemeral volumes.

:class:`Provisioner` makes a volume for each claim of its classes, which the claim's node can reach. Parameters of a
StorageClass of provisioner ``disk.lab.tessera.dev``:

``topologyKey``
    label of nodes that bounds who reaches a volume, such as ``topology.kubernetes.io/zone`` or
    ``kubernetes.io/hostname``; without it every node does.
``seconds``
    how long making one takes; 1 if not given.
"""

from contextlib import suppress
from typing import Any

from tessera.kube.errors import AlreadyExists, NotFound
from tessera.kube.informer import EventKind, WatchEvent
from tessera.kube.resources import PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, PODS
from tessera.kube.resources.meta import Resource, key_of
from tessera_lab.scheduler.filters.volumes import fitting_volume
from tessera_lab.scheduler.state.node_cache import BIND_COMPLETED, SELECTED_NODE, annotations, claims_of
from tessera_lab.workloads.base.mirrors import ObjectMirrors
from tessera_lab.workloads.base.ownership import Json, is_being_deleted, owner_reference
from tessera_lab.workloads.base.pods import phase
from tessera_lab.workloads.base.work_queue import WorkQueue

#: Annotation of a volume that a provisioner made.
PROVISIONED_BY = "pv.kubernetes.io/provisioned-by"
_CLAIM, _VOLUME = "claim", "volume"
PROVISIONER = "disk.lab.tessera.dev"


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


class Provisioner:
    """Makes volumes, each after the time that it takes."""

    def __init__(self, mirrors: ObjectMirrors) -> None:
        self._mirrors = mirrors
        self._began: dict[str, float] = {}
        self._queue: WorkQueue[str] = WorkQueue(self._reconcile, rng=mirrors.rng)
        mirrors.claims.add_handler(self._on_claim)
        mirrors.storage_classes.add_handler(self._on_class)

    async def run(self) -> None:
        """Makes volumes until cancelled."""
        await self._queue.run()

    def _on_claim(self, event: WatchEvent[dict[str, Any]]) -> None:
        if event.kind is EventKind.DELETED:
            self._began.pop(event.object["metadata"]["uid"], None)
        else:
            self._queue.add(key_of(event.object))

    def _on_class(self, _: WatchEvent[dict[str, Any]]) -> None:
        for claim in self._mirrors.claims.cache.values():
            self._queue.add(key_of(claim))

    async def _reconcile(self, key: str) -> float | None:
        claim = self._mirrors.claims.cache.get(key)
        if claim is None or is_being_deleted(claim) or claim["spec"].get("volumeName"):
            return None
        item = self._mirrors.storage_classes.cache.get(claim["spec"].get("storageClassName") or "")
        if item is None or item["provisioner"] != PROVISIONER:
            return None
        selected = annotations(claim).get(SELECTED_NODE)
        if item["volumeBindingMode"] == "WaitForFirstConsumer" and selected is None:
            return None
        parameters = item.get("parameters") or {}
        uid, now = claim["metadata"]["uid"], self._mirrors.clock.monotonic()
        remaining = self._began.setdefault(uid, now) + float(parameters.get("seconds", 1)) - now
        if remaining > 0:
            return remaining
        await self._make(claim, item, selected)
        return None

    async def _make(self, claim: Json, item: Json, selected: str | None) -> None:
        key = (item.get("parameters") or {}).get("topologyKey")
        value = self._value(item, key, selected) if key else ""
        if key and not value:
            await self._fail(claim, f"no node in reach has a label {key}")
            return
        meta = claim["metadata"]
        name = f"pvc-{meta['uid']}"
        reference = {"kind": "PersistentVolumeClaim", "apiVersion": "v1", "uid": meta["uid"]}
        spec = {
            "capacity": {"storage": claim["spec"]["resources"]["requests"]["storage"]},
            "accessModes": claim["spec"]["accessModes"],
            "persistentVolumeReclaimPolicy": item["reclaimPolicy"],
            "storageClassName": item["metadata"]["name"],
            "volumeMode": claim["spec"].get("volumeMode", "Filesystem"),
            "claimRef": {**reference, "namespace": meta["namespace"], "name": meta["name"]},
            "csi": {"driver": PROVISIONER, "volumeHandle": name},
        }
        if key:
            test = {"key": key, "operator": "In", "values": [value]}
            spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": [{"matchExpressions": [test]}]}}
        body = {"metadata": {"name": name, "annotations": {PROVISIONED_BY: PROVISIONER}}, "spec": spec}
        try:
            await self._mirrors.client.create(PERSISTENT_VOLUMES.as_dicts(), body)
        except AlreadyExists:
            return
        note = f"Successfully provisioned volume {name}"
        self._mirrors.record_event(PERSISTENT_VOLUME_CLAIMS, claim, "ProvisioningSucceeded", note)

    def _value(self, item: Json, key: str, selected: str | None) -> str:
        """The topology's value: the selected node's, else the first that the class allows, else any node's."""
        if selected is not None:
            node = self._mirrors.nodes.cache.get(selected)
            return str((node["metadata"].get("labels") or {}).get(key, "")) if node is not None else ""
        for term in item.get("allowedTopologies") or ():
            for test in term.get("matchLabelExpressions") or ():
                if test["key"] == key:
                    return str(test["values"][0])
        values = ((node["metadata"].get("labels") or {}).get(key) for node in self._mirrors.nodes.cache.values())
        return min((str(value) for value in values if value), default="")

    async def _fail(self, claim: Json, reason: str) -> None:
        """Gives the claim back to the scheduler, which may choose another node."""
        meta = claim["metadata"]
        note = f'failed to provision volume with StorageClass "{claim["spec"]["storageClassName"]}": {reason}'
        self._mirrors.record_event(PERSISTENT_VOLUME_CLAIMS, claim, "ProvisioningFailed", note, warning=True)
        patch = {"metadata": {"annotations": {SELECTED_NODE: None}}}
        await self._mirrors.client.merge_patch(PERSISTENT_VOLUME_CLAIMS, meta["name"], patch, meta["namespace"])


class EphemeralClaims:
    """Makes the claims of generic ephemeral volumes."""

    def __init__(self, mirrors: ObjectMirrors) -> None:
        self._mirrors = mirrors
        self._queue: WorkQueue[str] = WorkQueue(self._reconcile, rng=mirrors.rng)
        mirrors.pods.add_handler(self._on_pod)

    async def run(self) -> None:
        """Makes claims until cancelled."""
        await self._queue.run()

    def _on_pod(self, event: WatchEvent[dict[str, Any]]) -> None:
        volumes = event.object["spec"].get("volumes") or ()
        if event.kind is EventKind.ADDED and any(each.get("ephemeral") for each in volumes):
            self._queue.add(key_of(event.object))

    async def _reconcile(self, key: str) -> None:
        pod = self._mirrors.pods.cache.get(key)
        if pod is None or is_being_deleted(pod):
            return
        meta = pod["metadata"]
        for volume in pod["spec"].get("volumes") or ():
            name = f"{meta['name']}-{volume['name']}"
            if not volume.get("ephemeral") or f"{meta['namespace']}/{name}" in self._mirrors.claims.cache:
                continue
            template = volume["ephemeral"]["volumeClaimTemplate"]
            metadata = {**(template.get("metadata") or {}), "name": name}
            metadata["ownerReferences"] = [owner_reference(PODS, pod)]
            body = {"metadata": metadata, "spec": template["spec"]}
            with suppress(AlreadyExists):
                await self._mirrors.client.create(PERSISTENT_VOLUME_CLAIMS.as_dicts(), body, meta["namespace"])
