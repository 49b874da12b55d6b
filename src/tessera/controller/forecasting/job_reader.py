"""Reads the deadlines of Jobs, each Job once (:mod:`tessera.controller.forecasting.job_deadlines`).

An answer that is about one Job alone ends the question for this Job: it has no deadline. One that may be about all of
them stops the reading, and the next goes on behind that Job, so that no Job holds up the others for ever.
"""

import asyncio
import logging
from collections.abc import Sequence

from tessera.clock import parse_time_or_zero
from tessera.controller.forecasting.job_deadlines import JobDeadlines, JobKey
from tessera.kube.client.client import Client
from tessera.kube.client.errors import ApiError
from tessera.kube.resources import JOBS, Job
from tessera.limits.forecast import JOBS_READ

_log = logging.getLogger(__name__)

#: Jobs that are read at the same time.
_AT_ONCE = 8
#: Codes below 500 that are not about one Job: credentials, rights, time, pace.
_FOR_ALL = frozenset({401, 403, 408, 429})


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
