"""Job: pods that run to completion.

The controller counts finished pods as the real one does; it keeps them until the Job is deleted, so that their logs can
be read. ``completionMode: Indexed``, pod failure policies and success policies are not implemented: such a Job fails at
once with the reason ``NotImplemented``. It replaces failed pods after 10 s, doubling, at most ten minutes.
"""

from collections.abc import Sequence
from typing import Any

from tessera.clock import parse_rfc3339, rfc3339
from tessera.kube.errors import NotFound
from tessera.kube.resources import JOBS, PODS
from tessera_lab.workloads.base.mirrors import ORPHANS, OWNER, ObjectMirrors
from tessera_lab.workloads.base.ownership import Json, OwnershipClaims, is_being_deleted, queue_controller, queue_itself
from tessera_lab.workloads.base.pods import (
    PodMaker,
    condition,
    deletion_rank,
    from_template,
    is_active,
    is_ready,
    phase,
)
from tessera_lab.workloads.base.work_queue import Expectations, WorkQueue

#: Seconds: first and longest pause before failed pods are replaced (``DefaultJobPodFailureBackOff``, ``Max...``).
FIRST_PAUSE = 10.0
LONGEST_PAUSE = 600.0

#: ``spec.backoffLimit`` if it is left out.
BACKOFF_LIMIT = 6


class JobController:
    """Runs Jobs."""

    def __init__(self, mirrors: ObjectMirrors) -> None:
        self._mirrors = mirrors
        self._queue: WorkQueue[str] = WorkQueue(self._reconcile, rng=mirrors.rng)
        self._expectations = Expectations(mirrors.clock, self._queue.add)
        self._claims = OwnershipClaims(mirrors.client, JOBS, PODS)
        self._pods = PodMaker(mirrors, JOBS, self._expectations)
        mirrors.jobs.add_handler(queue_itself(self._queue))
        mirrors.pods.add_handler(queue_controller(JOBS, mirrors.jobs, self._queue, self._expectations))

    async def run(self) -> None:
        """Reconciles until cancelled."""
        await self._queue.run()

    async def _reconcile(self, key: str) -> float | None:
        job = self._mirrors.jobs.cache.get(key)
        if job is None:
            self._expectations.forget(key)
            return None
        if finished_condition(job) is not None:
            return await self._expire(job)
        cache = self._mirrors.pods.cache
        orphans = cache.by_index(ORPHANS, job["metadata"]["namespace"])
        pods = await self._claims.claim(job, cache.by_index(OWNER, job["metadata"]["uid"]), orphans)
        verdict = self._outcome(job, pods)
        again: float | None = None
        if not is_being_deleted(job) and self._expectations.are_met(key):
            again = await self._manage(key, job, pods, verdict)
        await self._write_status(job, pods, verdict)
        deadline = _remaining_deadline(job, self._mirrors.clock.now())
        return min((each for each in (again, deadline) if each is not None), default=None)

    def _outcome(self, job: Json, pods: Sequence[Json]) -> tuple[str, str, str] | None:
        """Returns condition, reason and message with which the Job ends; None while it runs."""
        missing = find_unimplemented_field(job)
        if missing:
            return "Failed", "NotImplemented", f"{missing} is not implemented by the lab"
        failed = sum(phase(pod) == "Failed" for pod in pods) + _restarts(job, pods)
        limit = job["spec"].get("backoffLimit")
        if failed > (BACKOFF_LIMIT if limit is None else int(limit)):
            return "Failed", "BackoffLimitExceeded", "Job has reached the specified backoff limit"
        remaining = _remaining_deadline(job, self._mirrors.clock.now())
        if remaining is not None and remaining <= 0:
            return "Failed", "DeadlineExceeded", "Job was active longer than specified deadline"
        if remaining_completions(job, pods) == 0:
            return "Complete", "CompletionsReached", "Reached expected number of succeeded pods"
        return None

    async def _manage(
        self, key: str, job: Json, pods: Sequence[Json], verdict: tuple[str, str, str] | None
    ) -> float | None:
        """Creates or deletes pods; returns seconds until failed pods may be replaced."""
        active = [pod for pod in pods if is_active(pod)]
        desired = 0 if verdict is not None or job["spec"].get("suspend") else desired_active(job, pods)
        if len(active) > desired:
            victims = sorted(active, key=deletion_rank)[: len(active) - desired]
            self._expectations.expect(key, deletions=[pod["metadata"]["uid"] for pod in victims])
            await self._pods.delete(key, job, victims)
        elif len(active) < desired:
            wait = _remaining_pause(pods, self._mirrors.clock.now())
            if wait > 0:
                return wait
            self._expectations.expect(key, creations=desired - len(active))
            await self._pods.create(key, job, lambda _: new_pod(job), desired - len(active))
        return None

    async def _write_status(self, job: Json, pods: Sequence[Json], verdict: tuple[str, str, str] | None) -> None:
        now = rfc3339(self._mirrors.clock.now())
        old = job.get("status") or {}
        active = [pod for pod in pods if is_active(pod)]
        suspended = bool(job["spec"].get("suspend"))
        counts = {
            "active": len(active),
            "ready": sum(map(is_ready, active)),
            "succeeded": sum(phase(pod) == "Succeeded" for pod in pods),
            "failed": sum(phase(pod) == "Failed" for pod in pods),
            "terminating": sum(is_being_deleted(pod) and phase(pod) not in {"Succeeded", "Failed"} for pod in pods),
        }
        status: dict[str, Any] = {
            name: value for name, value in counts.items() if value or name in {"ready", "terminating"} or old.get(name)
        }
        if not suspended and not old.get("startTime"):
            status["startTime"] = now
        ending = verdict is not None and not active
        conditions = [each for each in old.get("conditions") or () if each["type"] != "Suspended"]
        if suspended or condition(job, "Suspended") is not None:
            conditions.append(_suspended_condition(job, now, suspended=suspended))
        if ending and verdict is not None:
            conditions.append(_condition(verdict[0], "True", verdict[1], verdict[2], now))
            status["active"] = 0
            status["ready"] = 0
            if verdict[0] == "Complete":
                status["completionTime"] = now
        if conditions or old.get("conditions"):
            status["conditions"] = conditions
        await self._mirrors.write_status(JOBS, job, status)
        if ending and verdict is not None:
            self._record_end(job, verdict)

    def _record_end(self, job: Json, verdict: tuple[str, str, str]) -> None:
        kind, reason, message = verdict
        if kind == "Complete":
            self._mirrors.record_event(JOBS, job, "Completed", "Job completed")
        else:
            self._mirrors.record_event(JOBS, job, reason, message, warning=True)

    async def _expire(self, job: Json) -> float | None:
        """Deletes a finished Job after ``ttlSecondsAfterFinished``."""
        ttl, end = job["spec"].get("ttlSecondsAfterFinished"), finished_condition(job)
        if ttl is None or end is None or is_being_deleted(job):
            return None
        remaining = parse_rfc3339(end["lastTransitionTime"]) + int(ttl) - self._mirrors.clock.now()
        if remaining > 0:
            return remaining
        metadata = job["metadata"]
        try:
            await self._mirrors.client.delete(
                JOBS, metadata["name"], metadata["namespace"], uid=metadata["uid"], propagation="Foreground"
            )
        except NotFound:
            return None
        return None


def finished_condition(job: Json) -> Json | None:
    """Returns the condition with which the Job ended; None while it runs."""
    for kind in ("Complete", "Failed"):
        found = condition(job, kind)
        if found is not None and found["status"] == "True":
            return found
    return None


def find_unimplemented_field(job: Json) -> str | None:
    """Returns the field that this controller does not implement, if the Job uses one."""
    if job["spec"].get("completionMode") == "Indexed":
        return "spec.completionMode: Indexed"
    return next((f"spec.{name}" for name in ("podFailurePolicy", "successPolicy") if job["spec"].get(name)), None)


def remaining_completions(job: Json, pods: Sequence[Json]) -> int:
    """Number of pods that must still succeed; without ``completions`` it is one, and then all pods must have ended."""
    succeeded = sum(phase(pod) == "Succeeded" for pod in pods)
    completions = job["spec"].get("completions")
    if completions is not None:
        return max(0, int(completions) - succeeded)
    return 0 if succeeded and not any(map(is_active, pods)) else 1


def desired_active(job: Json, pods: Sequence[Json]) -> int:
    """Number of pods that should run now."""
    parallelism = job["spec"].get("parallelism")
    parallelism = 1 if parallelism is None else int(parallelism)
    if job["spec"].get("completions") is None:
        succeeded = any(phase(pod) == "Succeeded" for pod in pods)
        return min(parallelism, sum(map(is_active, pods))) if succeeded else parallelism
    return min(parallelism, remaining_completions(job, pods))


def new_pod(job: Json) -> Any:
    """The next pod of a Job; the server completes its name."""
    pod = from_template(job["spec"]["template"], job, JOBS)
    pod["metadata"]["generateName"] = job["metadata"]["name"] + "-"
    return pod


def _restarts(job: Json, pods: Sequence[Json]) -> int:
    """Counts restarts of containers: with OnFailure kubelet restarts them, and each restart counts as a failure."""
    if job["spec"]["template"]["spec"].get("restartPolicy") != "OnFailure":
        return 0
    return sum(
        each.get("restartCount", 0)
        for pod in pods
        if phase(pod) in {"Running", "Pending"}
        for each in (pod.get("status") or {}).get("containerStatuses") or ()
    )


def _remaining_pause(pods: Sequence[Json], now: float) -> float:
    """Seconds until failed pods may be replaced."""
    ends = sorted(_ended_at(pod) for pod in pods if phase(pod) == "Failed")
    succeeded = max((_ended_at(pod) for pod in pods if phase(pod) == "Succeeded"), default=0.0)
    in_a_row = [end for end in ends if end > succeeded]
    if not in_a_row:
        return 0.0
    pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(len(in_a_row) - 1, 16))
    return in_a_row[-1] + pause - now


def _ended_at(pod: Json) -> float:
    ends = [
        parse_rfc3339(each["state"]["terminated"]["finishedAt"])
        for each in (pod.get("status") or {}).get("containerStatuses") or ()
        if "terminated" in (each.get("state") or {})
    ]
    return max(ends, default=parse_rfc3339(pod["metadata"]["creationTimestamp"]))


def _remaining_deadline(job: Json, now: float) -> float | None:
    seconds, start = job["spec"].get("activeDeadlineSeconds"), (job.get("status") or {}).get("startTime")
    if seconds is None or start is None or job["spec"].get("suspend"):
        return None
    return parse_rfc3339(start) + int(seconds) - now


def _suspended_condition(job: Json, now: str, *, suspended: bool) -> Json:
    before = condition(job, "Suspended")
    if before is not None and (before["status"] == "True") == suspended:
        return before
    if suspended:
        return _condition("Suspended", "True", "JobSuspended", "Job suspended", now)
    return _condition("Suspended", "False", "JobResumed", "Job resumed", now)


def _condition(*parts: str) -> dict[str, str]:
    kind, status, reason, message, now = parts
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastProbeTime": now,
        "lastTransitionTime": now,
    }
