"""The leases of pods with slices: which run, which ended, how long starts take, and when a Job ends its pods.

A lease begins when kubelet takes the pod (``status.startTime``), which a new leader still finds on the pod, and ends
when the pod has finished or is gone. A pod that had finished before it was first seen counts nothing: the leader before
has counted it. :class:`LeaseTracker` and :class:`JobDeadlines` have no I/O and no clock; :class:`JobReader` asks.

A Job's ``activeDeadlineSeconds`` counts from the Job's start, and its pods do not show it. Rules:

- A Job is read when a pod of it has started, once; again for a pod that started after the ones that it was read for. A
  Job that was suspended and goes on has a new start, and new pods.
- The starts of pods are compared with each other, never with our clock: nodes' clocks set them.
- Jobs that were never read are read first.
- Jobs of pods that only wait are not read, nor is one whose name no Job can have: who creates a pod writes its owner.
- A Job whose deadline is over, while a pod of it still runs, has got a later one; its deadline counts no more.
- A change of the deadline without a new pod is not seen.
- An answer that is about one Job alone ends the question for this Job: it has no deadline. One that may be about all of
  them stops the reading, and the next goes on behind that Job, so that no Job holds up the others for ever.
"""

import asyncio
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from tessera.api.names import PodUid
from tessera.clock import parse_time_or_zero
from tessera.controller.objects.pod_info import FINISHED
from tessera.forecast.calibration import Outcomes
from tessera.forecast.lives import LeaseEnded, LifeHistory, LifeKind, RunningLease, life_kind
from tessera.forecast.past_times import RecentStarts, StartTimes, WaitHistory
from tessera.kube.client import Client
from tessera.kube.errors import ApiError
from tessera.kube.resources import JOBS, Job, OwnerReference, Pod
from tessera.kube.resources.meta import OBJECT_NAME

#: Most Jobs whose deadlines are read before one forecast; the others follow with the next. Each is a request; a Job is
#: read once for its pods that have started.
JOBS_READ = 100

_log = logging.getLogger(__name__)

#: Seconds after a Job's deadline in which its pods may still be there: their grace period, and the Job controller.
_OVERDUE = 120.0
#: Jobs that are read at the same time.
_AT_ONCE = 8
#: Codes below 500 that are not about one Job: credentials, rights, time, pace.
_FOR_ALL = frozenset({401, 403, 408, 429})


@dataclass(frozen=True, slots=True)
class JobKey:
    """A Job that owns a pod."""

    namespace: str
    name: str
    uid: str


def owning_job(namespace: str, owner: OwnerReference | None) -> JobKey | None:
    """Returns the Job that a pod's controller is; None for another kind, or a name that no Job can have."""
    if owner is None or owner.kind != "Job" or not owner.api_version.startswith("batch/"):
        return None
    if not OBJECT_NAME.fullmatch(owner.name):
        return None
    return JobKey(namespace, owner.name, str(owner.uid))


class JobDeadlines:
    """The deadlines of the Jobs that were read."""

    def __init__(self) -> None:
        #: By Job: the last start of the pods that it was read for, and when it ends its pods; None if never.
        self._read: dict[JobKey, tuple[float, float | None]] = {}
        #: By Job: the last start of its pods as :meth:`due` was told last.
        self._started: dict[JobKey, float] = {}

    def due(self, started: Iterable[tuple[JobKey, float]]) -> Sequence[JobKey]:
        """Returns the Jobs to read, those first that were never read, and forgets all Jobs that no pod names.

        Args:
            started: the Jobs of pods that run, each with the start of the pod in seconds since 1970.
        """
        last: dict[JobKey, float] = {}
        for job, time in started:
            last[job] = max(time, last.get(job, 0.0))
        self._started = last
        self._read = {job: found for job, found in self._read.items() if job in last}
        again = [job for job, (start, _) in self._read.items() if start < last[job]]
        return [*(job for job in last if job not in self._read), *again]

    def put(self, job: JobKey, end: float | None) -> None:
        """Takes in that a Job was read after the last :meth:`due`.

        Args:
            job: the Job.
            end: when it ends its pods, seconds since 1970; None for one that does not.
        """
        self._read[job] = (self._started.get(job, 0.0), end)

    def end_of(self, job: JobKey | None, now: float) -> float | None:
        """Returns when a Job ends its pods, seconds since 1970; None if that is not known, or never."""
        _, end = self._read.get(job, (0.0, None)) if job is not None else (0.0, None)
        return None if end is None or end + _OVERDUE < now else end


class JobReader:
    """Reads Jobs.

    Args:
        client: the API server.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        #: The last Job of those at which reading stopped.
        self._stopped_at: JobKey | None = None

    async def read(self, jobs: Sequence[JobKey], deadlines: JobDeadlines) -> None:
        """Reads the first of some Jobs into ``deadlines``; after an error the rest is left to the next call."""
        begin = jobs.index(self._stopped_at) + 1 if self._stopped_at in jobs else 0
        due = [*jobs[begin:], *jobs[:begin]][: int(JOBS_READ)]
        self._stopped_at = None
        for first in range(0, len(due), _AT_ONCE):
            part = due[first : first + _AT_ONCE]
            errors = await asyncio.gather(*(self._read(job, deadlines) for job in part))
            for job, error in zip(part, errors, strict=True):
                if error is not None:
                    self._stopped_at = job
                    _log.info("deadline of a Job cannot be read, tried again: %s", error)
            if self._stopped_at is not None:
                return

    async def _read(self, job: JobKey, deadlines: JobDeadlines) -> ApiError | OSError | None:
        """Takes in the deadline of a Job; returns the error if the Job must be read again."""
        end = None
        try:
            found = await self._client.get(JOBS, job.name, job.namespace)
        except (ApiError, OSError) as error:
            if not _is_about_the_job(error):
                return error
        else:
            end = deadline_of(found) if str(found.metadata.uid) == job.uid else None
        deadlines.put(job, end)
        return None


def _is_about_the_job(error: ApiError | OSError) -> bool:
    """True if asking again would have the same answer: no such Job, a name that is refused, a Job of a wrong form."""
    return isinstance(error, ApiError) and error.code < 500 and error.code not in _FOR_ALL


def deadline_of(job: Job) -> float | None:
    """Returns when a Job ends its pods, seconds since 1970; None for one without a deadline, or that is suspended."""
    seconds, started = job.spec.active_deadline_seconds, parse_time_or_zero(job.status.start_time)
    return None if seconds is None or not started else started + max(0, seconds)


@dataclass(frozen=True, slots=True)
class TrackedPod:
    """A pod with slices.

    Attributes:
        kind: the kind of its lease.
        profiles: its slices, sorted.
        image: of its first container.
        started: when kubelet took it, seconds since 1970; 0 before.
        deadline: seconds after that when kubelet ends it; None if it may run for ever.
        running: its containers have started.
        job: the Job that owns it; None for another owner.
        stays: restarts always, and is of a DaemonSet or static: it lasts as long as its node, so leases of others say
            nothing of it.
    """

    kind: LifeKind
    profiles: tuple[str, ...]
    image: str
    started: float
    deadline: float | None
    running: bool
    job: JobKey | None = None
    stays: bool = False


class LeaseTracker:
    """The leases of the cluster.

    Args:
        lives: takes each lease that ends.
        starts: takes the duration of each start.
        recent: counts the starts of the last hour.
        outcomes: takes each start, with its time.
        waits: takes how long each pod that waited for room did so, since its creation.

    Attributes:
        pods: pods with slices that have not finished, waiting ones too.
    """

    def __init__(
        self,
        lives: LifeHistory,
        starts: StartTimes,
        recent: RecentStarts,
        outcomes: Outcomes,
        waits: WaitHistory,
    ) -> None:
        self.pods: dict[PodUid, TrackedPod] = {}
        self._lives = lives
        self._starts = starts
        self._recent = recent
        self._outcomes = outcomes
        #: Pods that were seen waiting for room and have not started.
        self._waited: set[PodUid] = set()
        self._waits = waits

    def observe(self, pod: Pod, profiles: Sequence[str], now: float) -> None:
        """Takes in a pod with slices as it is now."""
        uid = PodUid(pod.metadata.uid)
        if pod.status.phase in FINISHED:
            self.drop(uid, now)
            return
        before, found = self.pods.get(uid), _track(pod, profiles)
        self.pods[uid] = found
        if before is not None and not before.started and found.started:
            self._note_start(uid, found, parse_time_or_zero(pod.metadata.creation_timestamp), now)
        if before is not None and not before.running and found.running:
            seconds = _start_seconds(pod)
            if seconds is not None:
                self._starts.add(found.image, seconds, found.kind.namespace)

    def _note_start(self, uid: PodUid, found: TrackedPod, created: float, now: float) -> None:
        waited = uid in self._waited
        self._waited.discard(uid)
        self._recent.add(found.profiles, now, waited=waited)
        self._outcomes.note_start(uid, found.started)
        if waited and created:
            self._waits.add(found.kind.profiles, found.started - created, found.kind.namespace)

    def drop(self, uid: PodUid, now: float) -> None:
        """Takes in that a pod has finished or is gone; an unknown one is no error."""
        found = self.pods.pop(uid, None)
        self._waited.discard(uid)
        if found is not None and found.started:
            self._lives.handle(LeaseEnded(found.kind, max(0.0, now - found.started), now))

    def note_wait(self, uid: PodUid) -> None:
        """Takes in that a pod waits for room; an unknown one is no error."""
        if uid in self.pods:
            self._waited.add(uid)

    def waits_for_room(self, uid: PodUid) -> bool:
        """True for a pod that was seen waiting for room and has not started."""
        return uid in self._waited

    def started_of_jobs(self) -> Iterator[tuple[JobKey, float]]:
        """Yields the Job of each pod that runs and has one, with the pod's start in seconds since 1970."""
        for each in self.pods.values():
            if each.started and each.job is not None:
                yield each.job, each.started

    def running(self) -> Iterator[RunningLease]:
        """Yields the leases that run."""
        for each in self.pods.values():
            if each.started:
                yield RunningLease(each.kind, each.started)


def _track(pod: Pod, profiles: Sequence[str]) -> TrackedPod:
    owner = next((each for each in pod.metadata.owner_references if each.controller), None)
    seconds = pod.spec.active_deadline_seconds
    return TrackedPod(
        kind=life_kind(pod.metadata.namespace, "" if owner is None else owner.kind, profiles),
        profiles=tuple(sorted(profiles)),
        image=pod.spec.containers[0].image if pod.spec.containers else "",
        started=parse_time_or_zero(pod.status.start_time),
        deadline=None if seconds is None else float(max(0, seconds)),
        running=_running_since(pod) > 0,
        job=owning_job(pod.metadata.namespace, owner),
        stays=owner is not None and owner.kind in {"DaemonSet", "Node"} and pod.lasts,
    )


def _running_since(pod: Pod) -> float:
    """When the first container of a pod started, seconds since 1970; 0 before."""
    times = (
        parse_time_or_zero(each.state.running.started_at)
        for each in pod.status.container_statuses
        if each.state is not None and each.state.running is not None
    )
    return min((time for time in times if time), default=0.0)


def _start_seconds(pod: Pod) -> float | None:
    """Seconds from the time at which a pod was scheduled until its first container ran; None if they are unknown."""
    bound = pod.status.condition("PodScheduled")
    scheduled = parse_time_or_zero(bound.last_transition_time) if bound is not None else 0.0
    since = _running_since(pod)
    return since - scheduled if scheduled and since >= scheduled else None
