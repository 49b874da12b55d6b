"""Starts, stops and evicts what a Workload is for, and writes the status of Workloads.

A Job is started and stopped by ``suspend``; pods are started by their gates and stopped by their deletion. After an
eviction the Workload's quota is free, its pods are stopped, and it waits again.
"""

import random
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from tessera.clock import Clock, rfc3339
from tessera.kube.client import Client
from tessera.kube.errors import NotFound
from tessera.kube.event_recorder import EventRecorder
from tessera.kube.resources import JOBS, PODS, ObjectReference
from tessera.kube.resources.meta import Resource
from tessera.kueue.objects import ADMISSION_GATE, TOPOLOGY_GATE
from tessera_lab.kueue.webhooks import MANAGED
from tessera_lab.kueue.workloads import Job, condition, is_leaving, phase

Json = dict[str, Any]


class JobControl:
    """Starts and stops Jobs and pods.

    Args:
        client: an administrator.
        clock: the time.
        flavors: the kind ResourceFlavor at the version that is used.
        hostname: the node that topologies choose for each pod, put into its node selector.
    """

    def __init__(self, client: Client, clock: Clock, flavors: Resource[Json], hostname: str) -> None:
        self._client = client
        self._clock = clock
        self._flavors = flavors
        self._hostname = hostname

    async def start(self, job: Job, item: Json) -> None:
        """Lets an admitted Job run, or takes the next gate off its pods."""
        labels = await self._node_labels(item)
        if job.kind == "Job":
            if job.owners[0]["spec"].get("suspend"):
                await self._resume(job, _selector(item["spec"]["podSets"][0]["template"]) | labels)
            return
        for pod in job.pods:
            await self._open_gate(pod, labels)

    async def _resume(self, job: Job, wanted: Json) -> None:
        """Lets a Job run on these nodes; what an earlier start has put into its template goes."""
        present = _selector(job.owners[0]["spec"]["template"])
        changed = {**dict.fromkeys(present, None), **wanted} if present != wanted else {}
        await self._patch_job(
            job, {"suspend": False, **({"template": {"spec": {"nodeSelector": changed}}} if changed else {})}
        )

    async def _open_gate(self, pod: Json, labels: Json) -> None:
        gates = pod["spec"].get("schedulingGates") or []
        chosen = {**(pod["spec"].get("nodeSelector") or {}), **labels}
        if any(gate["name"] == ADMISSION_GATE for gate in gates):
            rest = [gate for gate in gates if gate["name"] != ADMISSION_GATE]
        elif any(gate["name"] == TOPOLOGY_GATE for gate in gates):
            rest = [gate for gate in gates if gate["name"] != TOPOLOGY_GATE]
            chosen |= {"kubernetes.io/hostname": self._hostname} if self._hostname else {}
        else:
            return
        meta = pod["metadata"]
        patch = {"spec": {"schedulingGates": rest or None, "nodeSelector": chosen}}
        version = meta["resourceVersion"]
        await self._client.merge_patch(
            PODS.as_dicts(), meta["name"], patch, meta["namespace"], resource_version=version
        )

    async def _node_labels(self, item: Json) -> Json:
        """The labels of the flavors that a Workload has got."""
        found: Json = {}
        for each in item["status"]["admission"]["podSetAssignments"]:
            for flavor in set((each.get("flavors") or {}).values()):
                stored = await self._client.get(self._flavors, flavor)
                found |= (stored.get("spec") or {}).get("nodeLabels") or {}
        return found

    async def stop(self, job: Job, reason: str, text: str) -> None:
        """Suspends a Job, or deletes pods that were let go."""
        if job.kind == "Job":
            await self._patch_job(job, {"suspend": True})
            # A template's node selector may change only while the Job has no time of start, so Kueue clears it.
            await self._patch_job(job, {"startTime": None}, part="status")
            return
        for pod in job.pods:
            gates = [gate["name"] for gate in pod["spec"].get("schedulingGates") or ()]
            if ADMISSION_GATE in gates or is_leaving(pod):
                continue
            target = {
                "type": "TerminationTarget",
                "status": "True",
                "reason": reason,
                "message": text,
                "lastTransitionTime": rfc3339(self._clock.now()),
            }
            conditions = [*(pod["status"].get("conditions") or ()), target]
            name = pod["metadata"]["name"]
            await self._client.merge_patch(
                PODS.as_dicts(), name, {"status": {"conditions": conditions}}, job.namespace, subresource="status"
            )
            await self._client.delete(PODS, name, job.namespace)

    async def _patch_job(self, job: Job, values: Json, part: str = "spec") -> None:
        name = job.owners[0]["metadata"]["name"]
        where = None if part == "spec" else part
        await self._client.merge_patch(JOBS.as_dicts(), name, {part: values}, job.namespace, subresource=where)

    async def release(self, pods: Iterable[Json]) -> None:
        """Takes the finalizer off pods that have ended or are deleted."""
        for pod in pods:
            meta = pod["metadata"]
            finalizers = meta.get("finalizers") or []
            if MANAGED in finalizers and (is_leaving(pod) or phase(pod) in {"Succeeded", "Failed"}):
                rest = [each for each in finalizers if each != MANAGED]
                with suppress(NotFound):
                    await self._client.merge_patch(
                        PODS.as_dicts(), meta["name"], {"metadata": {"finalizers": rest}}, meta["namespace"]
                    )


def _selector(template: Json) -> Json:
    return (template.get("spec") or {}).get("nodeSelector") or {}


class WorkloadStatus:
    """The status of Workloads. A Workload in memory gets the status that the server has stored.

    Args:
        client: an administrator.
        clock: the time.
        workloads: the kind at the version that is used.
    """

    def __init__(self, client: Client, clock: Clock, workloads: Resource[Json]) -> None:
        self._client = client
        self._clock = clock
        self._workloads = workloads
        self._events = EventRecorder(client, component="kueue", instance="0", clock=clock, rng=random.Random(0))

    async def send_events(self) -> None:
        """Sends recorded events until cancelled."""
        await self._events.run()

    async def set_condition(
        self, item: Json, type_: str, status: bool, reason: str, text: str, *, drop: bool = False
    ) -> None:
        """Writes a condition unless it is there already; ``drop`` gives the quota back too."""
        conditions = self.with_condition(item, type_, status, reason, text)
        if conditions != item.get("status", {}).get("conditions"):
            await self.write(item, {"conditions": conditions, **({"admission": None} if drop else {})})

    def with_condition(self, item: Json, type_: str, status: bool, reason: str, text: str) -> list[Json]:
        """The conditions with this one; its time changes with its status alone."""
        before = condition(item, type_)
        made = {
            "type": type_,
            "status": str(status),
            "reason": reason,
            "message": text,
            "lastTransitionTime": rfc3339(self._clock.now()),
        }
        if before is not None and before["status"] == made["status"]:
            made["lastTransitionTime"] = before["lastTransitionTime"]
        rest = [each for each in item.get("status", {}).get("conditions") or () if each["type"] != type_]
        return sorted([*rest, made], key=lambda each: str(each["type"]))

    async def write(self, item: Json, patch: Json) -> None:
        """Merges a patch into the status."""
        meta = item["metadata"]
        stored = await self._client.merge_patch(
            self._workloads, meta["name"], {"status": patch}, meta["namespace"], subresource="status"
        )
        item["status"] = stored.get("status", {})

    def record(self, kind: str, item: Json, reason: str, text: str) -> None:
        """Records an event about a Workload, a Job or a pod."""
        meta = item["metadata"]
        versions = {"Pod": "v1", "Job": "batch/v1"}
        about = ObjectReference(
            api_version=versions.get(kind, self._workloads.api_version),
            kind=kind,
            namespace=meta["namespace"],
            name=meta["name"],
            uid=meta["uid"],
        )
        self._events.record(about, reason, text, type="Warning")


class Eviction:
    """Evicts Workloads.

    Args:
        clock: the time.
        status: writes their status.
        jobs: stops their pods.
    """

    def __init__(self, clock: Clock, status: WorkloadStatus, jobs: JobControl) -> None:
        self._clock = clock
        self._status = status
        self._jobs = jobs

    async def evict(self, job: Job, item: Json, reason: str, text: str, until: float | None = None) -> None:
        """Takes the quota back, stops the pods, and lets the Workload wait; until a time, if there is one."""
        self._status.record("Workload", item, f"EvictedDueTo{reason}", text)
        status = item.get("status", {})
        more: Json = {"admissionChecks": self._reset(status.get("admissionChecks") or []), "admission": None}
        if until is not None:
            count = ((status.get("requeueState") or {}).get("count") or 0) + 1
            more["requeueState"] = {"count": count, "requeueAt": rfc3339(until)}
        conditions: Any = status.get("conditions")
        for type_, holds, why in (
            ("Evicted", True, reason),
            ("QuotaReserved", False, "Pending"),
            ("Admitted", False, "NoReservation"),
        ):
            before = {"status": {"conditions": conditions}}
            conditions = self._status.with_condition(before, type_, holds, why, text)
        await self._status.write(item, {"conditions": conditions, **more})
        await self._jobs.stop(job, f"WorkloadEvictedDueTo{reason}", text)

    def _reset(self, checks: list[Json]) -> list[Json]:
        now = rfc3339(self._clock.now())
        return [
            {
                "name": each["name"],
                "state": "Pending",
                "lastTransitionTime": now,
                "message": f"Reset to Pending after eviction. Previously: {each['state']}",
            }
            for each in checks
        ]
