"""Eviction of pods from tainted devices: ``pkg/controller/devicetainteviction``.

A pod with a node is deleted if one of its claims holds a device with a taint of effect NoExecute that the claim does
not tolerate, after the seconds that it tolerates it for. It does not matter who wrote the allocation, nor whether the
taint is in a ResourceSlice or in a DeviceTaintRule. The status of a rule is not written.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tessera.clock import parse_rfc3339, rfc3339
from tessera.dra.devices import DeviceId
from tessera.kube.client.errors import Conflict, NotFound
from tessera.kube.resources import PODS
from tessera.kube.resources.meta import key_of
from tessera.kube.watch.informer import EventKind
from tessera_lab.scheduler.filters.node_placement import tolerates
from tessera_lab.scheduler.state.pod_claims import allocation_of, claim_names, is_reserved_for, results_of
from tessera_lab.scheduler.state.taint_rules import TaintRules
from tessera_lab.workloads.base.mirrors import ObjectMirrors
from tessera_lab.workloads.base.ownership import Json, is_being_deleted
from tessera_lab.workloads.base.pods import phase
from tessera_lab.workloads.base.work_queue import WorkQueue

_MESSAGE = "Device Taint manager: deleting due to NoExecute taint"


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
            "message": _MESSAGE,
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
