"""Evicts a Workload: its quota is free, its pods are stopped, and it waits again."""

from typing import Any

from tessera.clock import Clock, rfc3339
from tessera_lab.kueue.job_control import JobControl
from tessera_lab.kueue.workload_status import WorkloadStatus
from tessera_lab.kueue.workloads import Job

Json = dict[str, Any]


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
