"""ResourceClaims of pods: made from their templates, released and deleted when their pods are done.

Of ``pkg/controller/resourceclaim``, as a real 1.36.2 showed it:

* a pod's claims are made at once, also while the pod has scheduling gates; their names go into the pod's status;
* a pod that is finished, gone, or deleted before it had a node, is no consumer any more;
* a claim that has lost its last consumer loses its allocation in the same write, if it has the finalizer, and then the
  finalizer; an allocation that nobody was ever a consumer of stays;
* a claim of a template is deleted once its pod is done, and with its pod by the garbage collector.
"""

import asyncio
from typing import Any

from tessera.kube.errors import ApiError, Conflict, NotFound
from tessera.kube.informer import EventKind
from tessera.kube.resources import PODS
from tessera.kube.resources.meta import key_of
from tessera_lab.scheduler.claim_binding import RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS
from tessera_lab.scheduler.state.claim_cache import (
    FINALIZER,
    allocation_of,
    claim_names,
    consumer,
    is_reserved_for,
    owner_uid,
    reservations,
)
from tessera_lab.workloads.base.mirrors import OWNER, ObjectMirrors
from tessera_lab.workloads.base.ownership import Json, controller_of, is_being_deleted, owner_reference
from tessera_lab.workloads.base.pods import phase
from tessera_lab.workloads.base.work_queue import WorkQueue

#: Annotation of a claim: the entry of its pod's spec.
ENTRY = "resource.kubernetes.io/pod-claim-name"
#: Pods that have ended and are remembered (``maxUIDCacheEntries``).
_REMEMBERED = 500
_FREE: Json = {"allocation": None}


def is_done(pod: Json) -> bool:
    """True if the pod uses no claim any more."""
    return phase(pod) in {"Succeeded", "Failed"} or (is_being_deleted(pod) and not pod["spec"].get("nodeName"))


class ResourceClaimController:
    """Makes, releases and deletes claims."""

    def __init__(self, mirrors: ObjectMirrors) -> None:
        self._mirrors = mirrors
        self._pods: WorkQueue[str] = WorkQueue(self._reconcile_pod, rng=mirrors.rng)
        self._claims: WorkQueue[str] = WorkQueue(self._reconcile_claim, rng=mirrors.rng)
        #: UIDs of pods whose end was seen, the last ones: nobody need look for them.
        self._gone: dict[str, None] = {}
        mirrors.pods.add_handler(self._on_pod)
        mirrors.resource_claims.add_handler(self._on_claim)

    async def run(self) -> None:
        """Reconciles until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._pods.run())
            group.create_task(self._claims.run())

    def _on_pod(self, event: Any) -> None:
        pod = event.object
        if not pod["spec"].get("resourceClaims") and not (pod.get("status") or {}).get("extendedResourceClaimStatus"):
            return
        if event.kind is not EventKind.DELETED:
            self._pods.add(key_of(pod))
        else:
            self._note_gone(pod["metadata"]["uid"])
        if event.kind is EventKind.DELETED or is_done(pod):
            for name in claim_names(pod).values():
                self._claims.add(f"{pod['metadata']['namespace']}/{name}")

    def _note_gone(self, uid: str) -> None:
        self._gone[uid] = None
        if len(self._gone) > _REMEMBERED:
            del self._gone[next(iter(self._gone))]

    def _on_claim(self, event: Any) -> None:
        if event.kind is EventKind.DELETED:
            owner = controller_of(event.object)
            if owner is not None and owner["kind"] == "Pod":
                self._pods.add(f"{event.object['metadata']['namespace']}/{owner['name']}")
        else:
            self._claims.add(key_of(event.object))

    # Pods

    async def _reconcile_pod(self, key: str) -> None:
        pod = self._mirrors.pods.cache.get(key)
        if pod is None or is_being_deleted(pod) or is_done(pod):
            return
        statuses = [await self._status(pod, each) for each in pod["spec"].get("resourceClaims") or ()]
        made = [each for each in statuses if each is not None]
        if made and made != ((pod.get("status") or {}).get("resourceClaimStatuses") or []):
            meta = pod["metadata"]
            await self._mirrors.client.merge_patch(
                PODS.as_dicts(),
                meta["name"],
                {"status": {"resourceClaimStatuses": made}},
                meta["namespace"],
                subresource="status",
                uid=meta["uid"],
            )
        if pod["spec"].get("nodeName"):
            await self._reserve(pod)

    async def _status(self, pod: Json, entry: Json) -> Json | None:
        """The claim of one entry as the pod's status names it, made if there is none; None if the user made it."""
        template = entry.get("resourceClaimTemplateName")
        if not template:
            return None
        found = await self._known(pod, entry) or self._find(pod, entry)
        if found is None:
            try:
                found = await self._make(pod, entry)
            except ApiError as error:
                text = f"PodResourceClaim {entry['name']}: {error.message}"
                self._mirrors.record_event(PODS, pod, "FailedResourceClaimCreation", text, warning=True)
                raise
        return {"name": entry["name"], "resourceClaimName": found["metadata"]["name"]}

    async def _known(self, pod: Json, entry: Json) -> Json | None:
        """The claim that the pod's status names; one that the mirror does not have is looked up first."""
        name, namespace = claim_names(pod).get(entry["name"]), pod["metadata"]["namespace"]
        if not name:
            return None
        found: Json | None = self._mirrors.resource_claims.cache.get(f"{namespace}/{name}")
        if found is not None:
            return found
        try:
            return await self._mirrors.client.get(RESOURCE_CLAIMS, name, namespace)
        except NotFound:
            return None

    def _find(self, pod: Json, entry: Json) -> Json | None:
        """A claim that was made for the pod and is not in its status yet."""
        made = self._mirrors.resource_claims.cache.by_index(OWNER, pod["metadata"]["uid"])
        notes = ((each, each["metadata"].get("annotations") or {}) for each in made)
        return next((claim for claim, found in notes if found.get(ENTRY) == entry["name"]), None)

    async def _make(self, pod: Json, entry: Json) -> Json:
        namespace = pod["metadata"]["namespace"]
        client = self._mirrors.client
        template = await client.get(RESOURCE_CLAIM_TEMPLATES, entry["resourceClaimTemplateName"], namespace)
        given = template["spec"].get("metadata") or {}
        metadata = {
            "generateName": f"{pod['metadata']['name']}-{entry['name']}-",
            "labels": given.get("labels") or {},
            "annotations": {**(given.get("annotations") or {}), ENTRY: entry["name"]},
            "ownerReferences": [owner_reference(PODS, pod)],
        }
        body = {"metadata": metadata, "spec": template["spec"]["spec"]}
        return await client.create(RESOURCE_CLAIMS, body, namespace)

    async def _reserve(self, pod: Json) -> None:
        """Makes a pod that got its node without the scheduler a consumer of its allocated claims."""
        meta = pod["metadata"]
        for name in claim_names(pod).values():
            claim = self._mirrors.resource_claims.cache.get(f"{meta['namespace']}/{name}")
            if claim is None or allocation_of(claim) is None or is_reserved_for(claim, meta["uid"]):
                continue
            reserved = [*reservations(claim), consumer(meta["name"], meta["uid"])]
            await self._write_status(claim, {"reservedFor": reserved})

    # Claims

    async def _reconcile_claim(self, key: str) -> None:
        claim = self._mirrors.resource_claims.cache.get(key)
        if claim is None:
            return
        present = reservations(claim)
        valid = [each for each in present if not await self._is_over(claim, each)]
        protected = FINALIZER in (claim["metadata"].get("finalizers") or ())
        freed = protected and not valid
        written: Json | None = claim
        if len(valid) < len(present):
            written = await self._write_status(claim, {"reservedFor": valid or None, **(_FREE if freed else {})})
        elif freed and is_being_deleted(claim):
            written = await self._write_status(claim, _FREE) if allocation_of(claim) is not None else claim
        else:
            freed = False
        if freed and written is not None:
            await self._remove_finalizer(written)
        if not valid:
            await self._delete_if_done(claim)

    async def _is_over(self, claim: Json, reference: Json) -> bool:
        """True if a consumer is done; one that the mirror does not have is looked up first."""
        if reference.get("resource") != "pods" or reference.get("apiGroup"):
            return False
        if reference["uid"] in self._gone:
            return True
        namespace = claim["metadata"]["namespace"]
        pod: Json | None = self._mirrors.pods.cache.get(f"{namespace}/{reference['name']}")
        if pod is None:
            try:
                pod = await self._mirrors.client.get(PODS.as_dicts(), reference["name"], namespace)
            except NotFound:
                return True
        return pod["metadata"]["uid"] != reference["uid"] or is_done(pod)

    async def _delete_if_done(self, claim: Json) -> None:
        """Deletes a claim of a template whose pod is done; with the pod itself the garbage collector does it."""
        owner, namespace = owner_uid(claim), claim["metadata"]["namespace"]
        if not owner or is_being_deleted(claim):
            return
        names = [each["name"] for each in claim["metadata"]["ownerReferences"] if each["uid"] == owner]
        pod = self._mirrors.pods.cache.get(f"{namespace}/{names[0]}")
        if pod is not None and pod["metadata"]["uid"] == owner and is_done(pod):
            try:
                await self._mirrors.client.delete(
                    RESOURCE_CLAIMS, claim["metadata"]["name"], namespace, uid=claim["metadata"]["uid"]
                )
            except NotFound:
                return

    async def _write_status(self, claim: Json, status: Json) -> Json | None:
        return await self._patch(claim, {"status": status}, "status")

    async def _remove_finalizer(self, claim: Json) -> None:
        rest = [each for each in claim["metadata"]["finalizers"] if each != FINALIZER]
        await self._patch(claim, {"metadata": {"finalizers": rest or None}}, None)

    async def _patch(self, claim: Json, patch: Json, subresource: str | None) -> Json | None:
        """Returns the written claim; None if it is gone or has changed: the event of its next state queues it again."""
        meta = claim["metadata"]
        try:
            return await self._mirrors.client.merge_patch(
                RESOURCE_CLAIMS,
                meta["name"],
                patch,
                meta["namespace"],
                subresource=subresource,
                uid=meta["uid"],
                resource_version=meta["resourceVersion"],
            )
        except (NotFound, Conflict):
            return None
