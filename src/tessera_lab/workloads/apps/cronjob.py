"""CronJob: makes a Job at each time of its schedule, and removes old ones.

Source: ``pkg/controller/cronjob/cronjob_controllerv2.go``: of missed times only the last one counts, a late one counts
until ``startingDeadlineSeconds``, and the status is the only memory. :func:`decide` is pure; the controller carries its
steps out and writes the status once.
"""

from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, tzinfo
from email.utils import format_datetime
from typing import Any, NamedTuple

from tessera.clock import parse_rfc3339, rfc3339
from tessera.kube.errors import AlreadyExists, NotFound
from tessera.kube.resources import CRONJOBS, JOBS
from tessera.kube.resources.meta import split_key
from tessera_lab.apiserver.kinds.cron_schedule import CronSchedule, find_zone, parse_schedule
from tessera_lab.workloads.apps.job import finished_condition
from tessera_lab.workloads.base.mirrors import OWNER, ObjectMirrors
from tessera_lab.workloads.base.ownership import Json, is_being_deleted, owner_reference, queue_controller, queue_itself
from tessera_lab.workloads.base.work_queue import WorkQueue

#: Seconds after a time of the schedule at which it is looked at (``nextScheduleDelta``).
DELTA = 0.1
#: Missed times that count as a mistake.
_TOO_MANY = 100
#: When a CronJob's Job was due, as an annotation of it.
SCHEDULED = "batch.kubernetes.io/cronjob-scheduled-timestamp"


class Note(NamedTuple):
    """An event of a CronJob."""

    reason: str
    text: str
    warning: bool = False


class Plan(NamedTuple):
    """What is due for a CronJob.

    Attributes:
        start: the time of the Job to make; None for none.
        replace: Jobs to delete before.
        notes: events.
        again: seconds after which to look again; None for a change only.
    """

    start: float | None = None
    replace: Sequence[Json] = ()
    notes: Sequence[Note] = ()
    again: float | None = None


class CronJobController:
    """Makes Jobs."""

    def __init__(self, mirrors: ObjectMirrors) -> None:
        self._mirrors = mirrors
        self._queue: WorkQueue[str] = WorkQueue(self._reconcile, rng=mirrors.rng_of(CRONJOBS), workers=5)
        mirrors.cron_jobs.add_handler(queue_itself(self._queue))
        mirrors.jobs.add_handler(queue_controller(CRONJOBS, mirrors.cron_jobs, self._queue))

    async def run(self) -> None:
        """Reconciles until cancelled."""
        await self._queue.run()

    async def _reconcile(self, key: str) -> float | None:
        if self._mirrors.cron_jobs.cache.get(key) is None:
            return None
        namespace, name = split_key(key)
        try:
            # Mirrors lag behind this controller's own writes, and the status is its memory.
            item = await self._mirrors.client.get(CRONJOBS.as_dicts(), name, namespace)
        except NotFound:
            return None
        jobs = await self._jobs(item)
        status, notes = followed_status(item, jobs)
        plan = decide(item, status, jobs, self._mirrors.clock.now())
        for note in (*notes, *plan.notes):
            self._mirrors.record_event(CRONJOBS, item, note.reason, note.text, warning=note.warning)
        for job in plan.replace:
            await self._delete(item, job)
            status["active"] = [each for each in status["active"] if each["uid"] != job["metadata"]["uid"]]
        if plan.start is not None:
            await self._start(item, status, plan.start)
        await self._mirrors.write_status(CRONJOBS, item, status)
        for job in expired(item, jobs):
            await self._delete(item, job)
        return plan.again

    async def _jobs(self, item: Json) -> Sequence[Json]:
        """Its Jobs, with those that it made a moment ago."""
        jobs: list[Json] = list(self._mirrors.jobs.cache.by_index(OWNER, item["metadata"]["uid"]))
        known = {job["metadata"]["uid"] for job in jobs}
        for reference in (item.get("status") or {}).get("active") or ():
            if reference["uid"] not in known:
                with suppress(NotFound):
                    found = await self._mirrors.client.get(JOBS.as_dicts(), reference["name"], reference["namespace"])
                    jobs += [found] if found["metadata"]["uid"] == reference["uid"] else []
        return jobs

    async def _start(self, item: Json, status: dict[str, Any], at: float) -> None:
        """Makes the Job of a time; one that is there already was made before the status was written."""
        job, namespace = new_job(item, at), item["metadata"]["namespace"]
        try:
            made = await self._mirrors.client.create(JOBS.as_dicts(), job, namespace)
            self._mirrors.record_event(CRONJOBS, item, "SuccessfulCreate", f"Created job {job['metadata']['name']}")
        except AlreadyExists:
            made = await self._mirrors.client.get(JOBS.as_dicts(), job["metadata"]["name"], namespace)
        if finished_condition(made) is None:
            status["active"] = [*status["active"], _reference(made)]
        status["lastScheduleTime"] = rfc3339(at)

    async def _delete(self, item: Json, job: Json) -> None:
        metadata = job["metadata"]
        try:
            await self._mirrors.client.delete(
                JOBS, metadata["name"], metadata["namespace"], uid=metadata["uid"], propagation="Background"
            )
        except NotFound:
            return
        self._mirrors.record_event(CRONJOBS, item, "SuccessfulDelete", f"Deleted job {metadata['name']}")


def followed_status(item: Json, jobs: Sequence[Json]) -> tuple[dict[str, Any], list[Note]]:
    """The status after what its Jobs did: those that run, and when the last one succeeded."""
    old, notes = item.get("status") or {}, list[Note]()
    by_uid = {job["metadata"]["uid"]: job for job in jobs}
    active, success = [], old.get("lastSuccessfulTime")
    for reference in old.get("active") or ():
        job = by_uid.get(reference["uid"])
        end = None if job is None else finished_condition(job)
        if job is None:
            notes.append(Note("MissingJob", f"Active job went missing: {reference['name']}"))
        elif end is not None:
            text = f"Saw completed job: {reference['name']}, condition: {end['type']}"
            notes.append(Note("SawCompletedJob", text))
        else:
            active.append(reference)
    known = {each["uid"] for each in old.get("active") or ()}
    for uid, job in by_uid.items():
        if uid not in known and finished_condition(job) is None and not is_being_deleted(job):
            text = f"Saw a job that the controller did not create or forgot: {job['metadata']['name']}"
            notes.append(Note("UnexpectedJob", text, warning=True))
        done = (job.get("status") or {}).get("completionTime")
        if done and (not success or parse_rfc3339(done) > parse_rfc3339(success)):
            success = done
    status: dict[str, Any] = {"active": active}
    return status | ({"lastSuccessfulTime": success} if success else {}), notes


def decide(item: Json, status: Json, jobs: Sequence[Json], now: float) -> Plan:
    """Returns what is due.

    Args:
        item: the CronJob; its schedule and time zone are valid, as the API server checks.
        status: its status now.
        jobs: its Jobs.
        now: seconds since 1970.
    """
    spec = item["spec"]
    if is_being_deleted(item) or spec.get("suspend"):
        return Plan()
    zone, schedule = find_zone(spec.get("timeZone") or ""), parse_schedule(spec["schedule"])
    again, notes = _until_next(schedule, now, zone), list[Note]()
    due = _due(item, schedule, now, zone, notes)
    if due is None:
        return Plan(notes=notes, again=again)
    deadline, active = spec.get("startingDeadlineSeconds"), status["active"]
    if deadline is not None and due + deadline < now:
        when = format_datetime(datetime.fromtimestamp(due, UTC))
        notes.append(Note("MissSchedule", f"Missed scheduled time to start a job: {when}", warning=True))
        return Plan(notes=notes, again=again)
    if active and spec.get("concurrencyPolicy") == "Forbid":
        text = "Not starting job because prior execution is running and concurrency policy is Forbid"
        return Plan(notes=[*notes, Note("JobAlreadyActive", text)], again=again)
    running = {each["uid"] for each in active} if spec.get("concurrencyPolicy") == "Replace" else set()
    replace = [job for job in jobs if job["metadata"]["uid"] in running]
    return Plan(start=due, replace=replace, notes=notes, again=again)


def _due(item: Json, schedule: CronSchedule, now: float, zone: tzinfo, notes: list[Note]) -> float | None:
    """The last time of the schedule that has passed since the last Job, or since the CronJob's creation."""
    last = (item.get("status") or {}).get("lastScheduleTime")
    earliest = parse_rfc3339(last or item["metadata"]["creationTimestamp"])
    deadline = item["spec"].get("startingDeadlineSeconds")
    if deadline is not None:
        earliest = max(earliest, now - deadline)
    due, count = schedule.latest(earliest, now, zone)
    if count > _TOO_MANY:
        text = "too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew"
        notes.append(Note("TooManyMissedTimes", text, warning=True))
    return due


def _until_next(schedule: CronSchedule, now: float, zone: tzinfo) -> float | None:
    following = schedule.next(now, zone)
    return None if following is None else following - now + DELTA


def expired(item: Json, jobs: Sequence[Json]) -> list[Json]:
    """The Jobs beyond the limits of the history, oldest first."""
    found: list[Json] = []
    for kind, field in (("Complete", "successfulJobsHistoryLimit"), ("Failed", "failedJobsHistoryLimit")):
        limit = item["spec"].get(field)
        ended = [job for job in jobs if (finished_condition(job) or {}).get("type") == kind]
        ended.sort(key=lambda job: ((job.get("status") or {}).get("startTime") or "", job["metadata"]["name"]))
        if limit is not None:
            found += ended[: max(0, len(ended) - limit)]
    return [job for job in found if not is_being_deleted(job)]


def new_job(item: Json, at: float) -> dict[str, Any]:
    """The Job of a time; its name says which, so that there is one only."""
    template, name = item["spec"]["jobTemplate"], item["metadata"]["name"]
    meta, zone = template.get("metadata") or {}, find_zone(item["spec"].get("timeZone") or "")
    due = datetime.fromtimestamp(at, zone).isoformat().replace("+00:00", "Z")
    return {
        "metadata": {
            "name": f"{name}-{int(at) // 60}",
            "labels": dict(meta.get("labels") or {}),
            "annotations": {**(meta.get("annotations") or {}), SCHEDULED: due},
            "ownerReferences": [owner_reference(CRONJOBS, item)],
        },
        "spec": template["spec"],
    }


def _reference(job: Json) -> dict[str, str]:
    metadata = job["metadata"]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": metadata["name"],
        "namespace": metadata["namespace"],
        "uid": metadata["uid"],
        "resourceVersion": metadata["resourceVersion"],
    }
