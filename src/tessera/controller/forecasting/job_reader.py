"""Reads the deadlines of Jobs, each Job once (:mod:`tessera.controller.forecasting.job_deadlines`)."""

import asyncio
import logging
from collections.abc import Sequence

from tessera.clock import Clock, parse_time_or_zero
from tessera.controller.forecasting.job_deadlines import JobDeadlines, JobKey
from tessera.kube.client.client import Client
from tessera.kube.client.errors import ApiError, NotFound
from tessera.kube.resources import JOBS, Job
from tessera.limits.forecast import JOBS_READ

_log = logging.getLogger(__name__)

#: Jobs that are read at the same time.
_AT_ONCE = 8


class JobReader:
    """Reads Jobs.

    Args:
        client: the API server.
        clock: gives the time.
    """

    def __init__(self, client: Client, clock: Clock) -> None:
        self._client, self._clock = client, clock

    async def read(self, jobs: Sequence[JobKey], deadlines: JobDeadlines) -> None:
        """Reads the first of some Jobs into ``deadlines``; after an error the rest is left to the next call."""
        due = jobs[: int(JOBS_READ)]
        for first in range(0, len(due), _AT_ONCE):
            part = due[first : first + _AT_ONCE]
            try:
                ends = await asyncio.gather(*map(self._end, part))
            except (ApiError, OSError) as error:
                _log.info("deadlines of Jobs cannot be read, tried again: %s", error)
                return
            for job, end in zip(part, ends, strict=True):
                deadlines.put(job, self._clock.now(), end)

    async def _end(self, job: JobKey) -> float | None:
        try:
            found = await self._client.get(JOBS, job.name, job.namespace)
        except NotFound:
            return None
        return deadline_of(found) if str(found.metadata.uid) == job.uid else None


def deadline_of(job: Job) -> float | None:
    """Returns when a Job ends its pods, seconds since 1970; None for one without a deadline, or that is suspended."""
    seconds, started = job.spec.active_deadline_seconds, parse_time_or_zero(job.status.start_time)
    return None if seconds is None or not started else started + max(0, seconds)
