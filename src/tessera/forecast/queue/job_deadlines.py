"""Deadlines that Jobs give their pods: which Jobs to read, and when they end the pods that hold cards.

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
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tessera.clock import parse_time_or_zero
from tessera.kube.client.client import Client
from tessera.kube.client.errors import ApiError
from tessera.kube.resources import JOBS, Job, OwnerReference
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
