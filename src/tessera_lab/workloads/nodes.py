"""Controllers of nodes: lost nodes and their pods, and pods on tainted devices.

**Lost nodes** (:class:`NodeLifecycle`; ``pkg/controller/nodelifecycle`` and ``tainteviction``). A node whose Lease was
not renewed for the grace period gets Unknown conditions. A pod that does not tolerate ``unreachable`` with NoExecute is
deleted; one that tolerates it for some seconds is deleted after them. The node's kubelet confirms the deletion when it
is back. A node that never had a Lease is not watched. Left out: pods of such a node are not marked as not ready.

**Taints** (:class:`NodeTaints`). A node whose condition Ready is False has ``node.kubernetes.io/not-ready`` with effect
NoSchedule. The same with NoExecute is left out: it evicts after five minutes, and a node of the lab that boots is back
before that. A node whose conditions are Unknown has ``unreachable`` with both effects. Both go as soon as the node is
Ready.

**Pods without a kubelet** (:class:`PodGarbageCollector`; ``pkg/controller/podgc``). The controller deletes pods whose
node is gone, and pods that are being deleted and never had a node, since no kubelet confirms their deletion. The limit
of finished pods is left out, since a lab never has that many.

**Tainted devices** (:class:`DeviceTaintEviction`; ``pkg/controller/devicetainteviction``). A pod with a node is deleted
if one of its claims holds a device with a taint of effect NoExecute that the claim does not tolerate, after the seconds
that it tolerates it for. It does not matter who wrote the allocation, nor whether the taint is in a ResourceSlice or in
a DeviceTaintRule. The status of a rule is not written.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tessera.clock import parse_rfc3339, rfc3339
from tessera.dra.devices import DeviceId
from tessera.kube.errors import Conflict, NotFound
from tessera.kube.informer import EventKind
from tessera.kube.resources import NODES, PODS
from tessera.kube.resources.meta import key_of
from tessera_lab.kubelet.node.node_object import NOT_READY_TAINT
from tessera_lab.scheduler.filters.node_placement import find_untolerated, tolerates
from tessera_lab.scheduler.state.claim_cache import TaintRules, allocation_of, claim_names, is_reserved_for, results_of
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
#: Seconds without a renewal until a node is Unknown (``--node-monitor-grace-period`` since Kubernetes 1.32).
GRACE = 50.0
_MESSAGE = "Kubelet stopped posting node status."
_NO_EXECUTE = {"key": UNREACHABLE_TAINT, "effect": "NoExecute"}
#: Seconds that a missing node may take to appear (again) before its pods are deleted (``quarantineTime``).
QUARANTINE = 40.0
_TAINTED = "Device Taint manager: deleting due to NoExecute taint"


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


class DeviceTaintEviction:
    """Deletes pods whose devices are tainted."""

    def __init__(self, mirrors: ObjectMirrors) -> None:
        self._mirrors = mirrors
        self._taints: dict[str, Mapping[DeviceId, tuple[Json, ...]]] = {}
        self._rules = TaintRules()
        self._queue: WorkQueue[str] = WorkQueue(self._reconcile, rng=mirrors.rng)
        mirrors.resource_slices.add_handler(self._on_slice)
        mirrors.resource_claims.add_handler(self._on_claim)
        mirrors.pods.add_handler(self._on_pod)
        if mirrors.device_taint_rules is not None:
            mirrors.device_taint_rules.add_handler(self._on_rule)

    async def run(self) -> None:
        """Evicts until cancelled."""
        await self._queue.run()

    def _on_slice(self, event: Any) -> None:
        name = event.object["metadata"]["name"]
        before = self._taints.pop(name, {})
        found = {} if event.kind is EventKind.DELETED else dict(_tainted_devices(event.object))
        if found:
            self._taints[name] = found
        if found and found != before:
            self._add_all_consumers()

    def _on_rule(self, event: Any) -> None:
        self._rules.set(event.object, gone=event.kind is EventKind.DELETED)
        self._add_all_consumers()

    def _add_all_consumers(self) -> None:
        for claim in self._mirrors.resource_claims.cache.values():
            self._add_consumers(claim)

    def _on_claim(self, event: Any) -> None:
        if (self._taints or self._rules) and event.kind is not EventKind.DELETED:
            self._add_consumers(event.object)

    def _on_pod(self, event: Any) -> None:
        if (self._taints or self._rules) and event.kind is not EventKind.DELETED and claim_names(event.object):
            self._queue.add(key_of(event.object))

    def _add_consumers(self, claim: Json) -> None:
        if any(self._taints_of(each) for each in results_of(allocation_of(claim))):
            for each in (claim.get("status") or {}).get("reservedFor") or ():
                self._queue.add(f"{claim['metadata']['namespace']}/{each['name']}")

    def _taints_of(self, result: Json) -> Iterator[Json]:
        device = DeviceId(result["driver"], result["pool"], result["device"])
        for found in self._taints.values():
            yield from found.get(device, ())
        yield from (each for each in self._rules.taints(device) if each["effect"] == "NoExecute")

    async def _reconcile(self, key: str) -> float | None:
        pod = self._mirrors.pods.cache.get(key)
        if pod is None or not pod["spec"].get("nodeName") or is_being_deleted(pod):
            return None
        if phase(pod) in {"Succeeded", "Failed"}:
            return None
        ends = [end for claim in self._claims_of(pod) for end in self._ends(claim)]
        if not ends:
            return None
        left = min(ends) - self._mirrors.clock.now()
        if left > 0:
            return left
        await self._evict(pod)
        return None

    def _claims_of(self, pod: Json) -> Iterator[Json]:
        meta = pod["metadata"]
        for name in claim_names(pod).values():
            claim = self._mirrors.resource_claims.cache.get(f"{meta['namespace']}/{name}")
            if claim is not None and is_reserved_for(claim, meta["uid"]):
                yield claim

    def _ends(self, claim: Json) -> Iterable[float]:
        """Seconds since 1970 at which taints of the claim's devices end its consumers."""
        for result in results_of(allocation_of(claim)):
            for taint in self._taints_of(result):
                matching = [each for each in result.get("tolerations") or () if tolerates(each, taint)]
                bounds = [float(each["tolerationSeconds"]) for each in matching if "tolerationSeconds" in each]
                if not matching or bounds:
                    yield parse_rfc3339(taint["timeAdded"]) + (max(0.0, min(bounds)) if matching else 0.0)

    async def _evict(self, pod: Json) -> None:
        meta = pod["metadata"]
        condition = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "DeletionByDeviceTaintManager",
            "message": _TAINTED,
            "lastTransitionTime": rfc3339(self._mirrors.clock.now()),
        }
        conditions = [*((pod.get("status") or {}).get("conditions") or ()), condition]
        client = self._mirrors.client
        try:
            await client.merge_patch(
                PODS.as_dicts(),
                meta["name"],
                {"status": {"conditions": conditions}},
                meta["namespace"],
                subresource="status",
                uid=meta["uid"],
            )
            await client.delete(PODS, meta["name"], meta["namespace"], uid=meta["uid"])
        except (NotFound, Conflict):
            return
        self._mirrors.record_event(PODS, pod, "DeviceTaintManagerEviction", "Marking for deletion")


def _tainted_devices(obj: Json) -> Iterator[tuple[DeviceId, tuple[Json, ...]]]:
    """The devices of a slice that have taints with NoExecute."""
    spec = obj["spec"]
    for device in spec.get("devices") or ():
        taints = tuple(each for each in device.get("taints") or () if each["effect"] == "NoExecute")
        if taints:
            yield DeviceId(spec["driver"], spec["pool"]["name"], device["name"]), taints
