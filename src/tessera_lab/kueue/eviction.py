"""Writes the status of Workloads and events about them, and evicts a Workload.

Of one that is evicted the quota is free, its pods are stopped, and it waits again.
"""

import random
from typing import Any

from tessera.clock import Clock, rfc3339
from tessera.kube.client.client import Client
from tessera.kube.event_recorder import EventRecorder
from tessera.kube.resources import ObjectReference
from tessera.kube.resources.meta import Resource
from tessera_lab.kueue.job_control import JobControl
from tessera_lab.kueue.workloads import Job, condition

Json = dict[str, Any]


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
