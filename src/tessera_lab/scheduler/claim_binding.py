"""What is bound before a pod: its claims and its volumes, as kube-scheduler's PreBind does.

**Claims** (plugin DynamicResources): reserves a pod's claims before it is bound, and clears others.

Before a pod is bound it becomes a consumer of each of its claims; a claim that the scheduler allocates first gets the
finalizer, then allocation and consumer in one write. As in Kubernetes 1.36 this write sets ``allocationTimestamp``
where an allocation has none; the server takes that for a change of the allocation and refuses it, for ever.

A claim whose allocation is on no node that could take the pod is cleared, if nobody else uses it.

**Volumes.** It reserves an existing volume for its claim; on a claim that needs a new volume it writes the node, and
the provisioner makes the volume there. Then the binding of this pod waits; the scheduler goes on with others.
"""

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from tessera.clock import Clock, rfc3339
from tessera.kube.client import Client
from tessera.kube.errors import ApiError, Conflict, NotFound
from tessera.kube.informer import EventKind, Informer, WatchEvent
from tessera.kube.resources import CSI_NODES, PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, PODS, STORAGE_CLASSES
from tessera.kube.resources.meta import Resource, key_of, split_key, uid_of
from tessera_lab.scheduler.decision import NodeChoice
from tessera_lab.scheduler.filters.claims import ClaimPlan, ExtendedClaim
from tessera_lab.scheduler.state.claim_cache import (
    FINALIZER,
    ClaimCache,
    allocation_of,
    consumer,
    is_reserved_for,
    reservations,
)
from tessera_lab.scheduler.state.node_cache import SELECTED_NODE, CachedPod, StorageCache
from tessera_lab.simulation.supervision import LabInformer

Json = dict[str, Any]

_GROUP = "resource.k8s.io"
RESOURCE_CLAIMS = Resource(_GROUP, "v1", "resourceclaims", "ResourceClaim", True, dict[str, Any])
RESOURCE_CLAIM_TEMPLATES = Resource(
    _GROUP, "v1", "resourceclaimtemplates", "ResourceClaimTemplate", True, dict[str, Any]
)
RESOURCE_SLICES = Resource(_GROUP, "v1", "resourceslices", "ResourceSlice", False, dict[str, Any])
DEVICE_TAINT_RULES = Resource(_GROUP, "v1", "devicetaintrules", "DeviceTaintRule", False, dict[str, Any])
DEVICE_CLASSES = Resource(_GROUP, "v1", "deviceclasses", "DeviceClass", False, dict[str, Any])
#: Seconds that binding may take (``bindTimeoutSeconds``); then the scheduler decides the pod again.
BIND_TIMEOUT = 600.0


class ClaimBindingError(Exception):
    """A claim could not be reserved; the text is that of the pod's condition."""


class ClaimBinder:
    """Mirrors objects of ``resource.k8s.io`` and writes claims.

    Args:
        client: writes to the API server.
        cache: the scheduler's cache, which this class keeps up to date.
        changed: called after every change of the cache.
        clock: for timestamps.
        taint_rules: the server has DeviceTaintRules.
    """

    def __init__(
        self,
        client: Client,
        cache: ClaimCache,
        changed: Callable[[], None],
        *,
        clock: Clock,
        taint_rules: bool = False,
    ) -> None:
        self._client = client
        self._cache = cache
        self._changed = changed
        self._clock = clock
        #: Claims made for extended resources, by the UID of a pod whose binding is under way.
        self._made: dict[str, str] = {}
        handlers = (
            (RESOURCE_CLAIMS, self._on_claim),
            (DEVICE_CLASSES, self._on_class),
            (RESOURCE_SLICES, self._on_slice),
            *([(DEVICE_TAINT_RULES, self._on_rule)] if taint_rules else ()),
        )
        rng = random.Random(_GROUP)
        self.informers: Sequence[Informer[Json]] = [
            LabInformer(client, kind, clock=clock, rng=rng) for kind, _ in handlers
        ]
        for informer, (_, handle) in zip(self.informers, handlers, strict=True):
            informer.add_handler(handle)

    def _on_claim(self, event: WatchEvent[Json]) -> None:
        if event.kind is EventKind.DELETED:
            self._cache.remove_claim(key_of(event.object), uid_of(event.object))
        else:
            self._cache.set_claim(key_of(event.object), event.object)
        self._changed()

    def _on_class(self, event: WatchEvent[Json]) -> None:
        self._cache.set_class(event.object, gone=event.kind is EventKind.DELETED)
        self._changed()

    def _on_slice(self, event: WatchEvent[Json]) -> None:
        self._cache.set_slice(event.object, gone=event.kind is EventKind.DELETED)
        self._changed()

    def _on_rule(self, event: WatchEvent[Json]) -> None:
        self._cache.set_rule(event.object, gone=event.kind is EventKind.DELETED)
        self._changed()

    def assume(self, plan: ClaimPlan) -> None:
        """Counts the devices of a decision before they are written."""
        for key, allocation in plan.allocate.items():
            self._cache.assume(self._cache.claims[key], allocation)
        if plan.extended is not None:
            self._cache.assume(plan.extended.claim, plan.extended.allocation)

    async def bind(self, pod: CachedPod, plan: ClaimPlan) -> None:
        """Returns once the pod is a consumer of all its claims.

        Raises:
            ClaimBindingError: the server refused a write.
        """
        for key in (*plan.allocate, *plan.reserve):
            try:
                await self._reserve(key, pod, plan.allocate.get(key))
            except (ApiError, ConnectionError, TimeoutError) as error:
                await self.undo(pod, plan)
                reason = error.message if isinstance(error, ApiError) else str(error)
                text = f'running PreBind plugin "DynamicResources": add reservation to claim {key}: {reason}'
                raise ClaimBindingError(text) from error
        if plan.extended is not None:
            try:
                await self._make_extended(pod, plan.extended)
            except (ApiError, ConnectionError, TimeoutError) as error:
                await self.undo(pod, plan)
                text = f'running PreBind plugin "DynamicResources": create claim for extended resources: {error}'
                raise ClaimBindingError(text) from error
            finally:
                self._cache.assume(plan.extended.claim, None)

    async def _make_extended(self, pod: CachedPod, wanted: ExtendedClaim) -> None:
        """Makes the claim of a pod's extended resources, allocates it, and names it in the pod's status."""
        namespace, name = split_key(pod.key)
        owner = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": pod.uid}
        metadata = {
            "generateName": f"{name}-extended-resources-",
            "annotations": {"resource.kubernetes.io/extended-resource-claim": "true"},
            "finalizers": [FINALIZER],
            "ownerReferences": [{**owner, "controller": True, "blockOwnerDeletion": True}],
        }
        body = {"metadata": metadata, "spec": {"devices": {"requests": wanted.requests}}}
        made = await self._client.create(RESOURCE_CLAIMS, body, namespace)
        self._made[pod.uid] = f"{namespace}/{made['metadata']['name']}"
        path = RESOURCE_CLAIMS.path(namespace, made["metadata"]["name"], "status")
        await self._put(path, {**made, "status": self._reserved_status(made, pod, wanted.allocation)})
        status = {"resourceClaimName": made["metadata"]["name"], "requestMappings": wanted.mappings}
        patch = {"status": {"extendedResourceClaimStatus": status}}
        await self._client.merge_patch(PODS, name, patch, namespace, subresource="status", uid=pod.uid)

    async def _reserve(self, key: str, pod: CachedPod, allocation: Mapping[str, Any] | None) -> None:
        namespace, name = split_key(key)
        cached = self._cache.claims.get(key)
        claim = dict(cached) if cached else await self._client.get(RESOURCE_CLAIMS, name, namespace)
        while not is_reserved_for(claim, pod.uid):
            try:
                if allocation is not None and FINALIZER not in (claim["metadata"].get("finalizers") or ()):
                    finalizers = [*(claim["metadata"].get("finalizers") or ()), FINALIZER]
                    meta = {**claim["metadata"], "finalizers": finalizers}
                    claim = await self._put(RESOURCE_CLAIMS.path(namespace, name), {**claim, "metadata": meta})
                path = RESOURCE_CLAIMS.path(namespace, name, "status")
                claim = await self._put(path, {**claim, "status": self._reserved_status(claim, pod, allocation)})
            except Conflict:
                claim = await self._client.get(RESOURCE_CLAIMS, name, namespace)

    def _reserved_status(self, claim: Json, pod: CachedPod, allocation: Mapping[str, Any] | None) -> Json:
        given: Json = dict(allocation_of(claim) or allocation or {})
        given.setdefault("allocationTimestamp", rfc3339(self._clock.now()))
        reserved = [*reservations(claim), consumer(split_key(pod.key)[1], pod.uid)]
        return {**(claim.get("status") or {}), "allocation": given, "reservedFor": reserved}

    async def _put(self, path: str, body: Json) -> Json:
        manager = [("fieldManager", self._client.field_manager)]
        written: Json = msgspec.json.decode((await self._client.request("PUT", path, query=manager, body=body)).body)
        return written

    def forget(self, uid: str) -> None:
        """The pod is bound: its claims are its own."""
        self._made.pop(uid, None)

    async def undo(self, pod: CachedPod, plan: ClaimPlan) -> None:
        """Takes the pod's reservations back, as its binding has failed; what was allocated stays so.

        A claim for extended resources is deleted: the next decision makes another.
        """
        made = self._made.pop(pod.uid, "")
        if made:
            await self._write_status(made, _cleared)
            await self._delete_extended(made)
        for key in (*plan.allocate, *plan.reserve):
            claim = self._cache.claims.get(key)
            if claim is not None:
                self._cache.assume(claim, None)
            await self._write_status(key, lambda status: _without_consumer(status, pod.uid))

    async def _delete_extended(self, key: str) -> None:
        namespace, name = split_key(key)
        try:
            await self._client.merge_patch(RESOURCE_CLAIMS, name, {"metadata": {"finalizers": None}}, namespace)
            await self._client.delete(RESOURCE_CLAIMS, name, namespace)
        except (NotFound, ConnectionError, TimeoutError):
            return

    async def clear(self, keys: Sequence[str], pod: CachedPod) -> None:
        """Clears the first of these claims that nobody but the pod uses; the next decision clears another."""
        for key in keys:
            claim = self._cache.claims.get(key)
            if claim is not None and all(each.get("uid") == pod.uid for each in reservations(claim)):
                await self._write_status(key, _cleared)
                return

    async def _write_status(self, key: str, change: Callable[[Json], Json | None]) -> None:
        """Writes a changed status unless ``change`` returns None; a claim that is gone or changed is left alone."""
        namespace, name = split_key(key)
        try:
            claim = await self._client.get(RESOURCE_CLAIMS, name, namespace)
            status = change(claim.get("status") or {})
            if status is not None:
                await self._put(RESOURCE_CLAIMS.path(namespace, name, "status"), {**claim, "status": status})
        except (NotFound, Conflict, ConnectionError, TimeoutError):
            return


def _without_consumer(status: Json, uid: str) -> Json | None:
    rest = [each for each in status.get("reservedFor") or () if each.get("uid") != uid]
    return None if len(rest) == len(status.get("reservedFor") or ()) else {**status, "reservedFor": rest}


def _cleared(status: Json) -> Json | None:
    if status.get("allocation") is None:
        return None
    return {key: value for key, value in status.items() if key not in {"allocation", "reservedFor", "devices"}}


class VolumeBinder:
    """Mirrors storage objects and binds claims.

    Args:
        client: writes to the API server.
        storage: the scheduler's cache, which this class keeps up to date.
        changed: called after every change of the cache.
        clock: the time.
        rng: for the mirrors' jitter.
    """

    def __init__(
        self, client: Client, storage: StorageCache, changed: Callable[[], None], *, clock: Clock, rng: random.Random
    ) -> None:
        self._client = client
        self._storage = storage
        self._changed = changed
        self._bound = asyncio.Event()
        kinds: tuple[tuple[Resource[Any], dict[str, Any]], ...] = (
            (PERSISTENT_VOLUME_CLAIMS, storage.claims),
            (PERSISTENT_VOLUMES, storage.volumes),
            (STORAGE_CLASSES, storage.classes),
            (CSI_NODES, storage.csi_nodes),
        )
        self.informers: Sequence[Informer[Json]] = [
            LabInformer(client, kind.as_dicts(), clock=clock, rng=rng) for kind, _ in kinds
        ]
        for informer, (_, memory) in zip(self.informers, kinds, strict=True):
            informer.add_handler(self._mirror(memory))

    def _mirror(self, memory: dict[str, Any]) -> Callable[[WatchEvent[Json]], None]:
        def handle(event: WatchEvent[Json]) -> None:
            if event.kind is EventKind.DELETED:
                memory.pop(key_of(event.object), None)
            else:
                memory[key_of(event.object)] = event.object
            self._bound.set()
            self._changed()

        return handle

    async def bind(self, placed: NodeChoice) -> None:
        """Returns once all claims of a decision are bound.

        Raises:
            TimeoutError: they were not bound in time.
            ApiError: the server refused a write.
        """
        plan = placed.volumes
        for claim, volume in plan.bind.items():
            namespace, name = split_key(claim)
            reference = {"kind": "PersistentVolumeClaim", "apiVersion": "v1", "namespace": namespace, "name": name}
            reference["uid"] = self._storage.claims[claim]["metadata"]["uid"]
            await self._client.merge_patch(PERSISTENT_VOLUMES, volume, {"spec": {"claimRef": reference}})
        for claim in plan.make:
            namespace, name = split_key(claim)
            patch = {"metadata": {"annotations": {SELECTED_NODE: placed.node}}}
            await self._client.merge_patch(PERSISTENT_VOLUME_CLAIMS, name, patch, namespace)
        desired = (*plan.bind, *plan.make)
        if not desired:
            return
        async with asyncio.timeout(BIND_TIMEOUT):
            while not all(self._is_bound(claim) for claim in desired):
                self._bound.clear()
                await self._bound.wait()

    def _is_bound(self, key: str) -> bool:
        claim = self._storage.claims.get(key)
        return claim is not None and self._storage.is_bound(claim)
