"""A simulated provisioner: makes a volume for each claim of its classes, which the claim's node can reach.

Parameters of a StorageClass of provisioner ``disk.lab.tessera.dev``:

``topologyKey``
    label of nodes that bounds who reaches a volume, such as ``topology.kubernetes.io/zone`` or
    ``kubernetes.io/hostname``; without it every node does.
``seconds``
    how long making one takes; 1 if not given.

Beside it: the controller that makes the claims of generic ephemeral volumes.
"""

from contextlib import suppress
from typing import Any

from tessera.kube.client.errors import AlreadyExists
from tessera.kube.resources import PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, PODS
from tessera.kube.resources.meta import key_of
from tessera.kube.watch.informer import EventKind, WatchEvent
from tessera_lab.scheduler.state.storage_cache import SELECTED_NODE, annotations
from tessera_lab.workloads.base.mirrors import ObjectMirrors
from tessera_lab.workloads.base.ownership import Json, is_being_deleted, owner_reference
from tessera_lab.workloads.base.work_queue import WorkQueue
from tessera_lab.workloads.storage.volume_controller import PROVISIONED_BY

PROVISIONER = "disk.lab.tessera.dev"


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
