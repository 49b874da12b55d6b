"""Follows the leases of pods with slices: which run, which ended, and how long starts take. No I/O and no clock.

A lease begins when kubelet takes the pod (``status.startTime``), which a new leader still finds on the pod, and ends
when the pod has finished or is gone. A pod that had finished before it was first seen counts nothing: the leader before
has counted it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tessera.api.names import PodUid
from tessera.clock import parse_time_or_zero
from tessera.controller.objects.pod_info import FINISHED
from tessera.forecast.calibration import Outcomes
from tessera.forecast.lives import LeaseEnded, LifeHistory, LifeKind, RunningLease, life_kind
from tessera.forecast.past_times import RecentStarts, StartTimes, WaitHistory
from tessera.forecast.queue.job_deadlines import JobKey, owning_job
from tessera.kube.resources import Pod


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
    """

    kind: LifeKind
    profiles: tuple[str, ...]
    image: str
    started: float
    deadline: float | None
    running: bool
    job: JobKey | None = None


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
