"""Each Job is read once for its pods that have started, and its deadline counts until it is over."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from tests.webhook.conftest import Lab, in_lab

from tessera.clock import rfc3339
from tessera.forecast.queue.leases import JOBS_READ, JobDeadlines, JobKey, JobReader, deadline_of, owning_job
from tessera.kube.client import Client
from tessera.kube.errors import ApiError, Status
from tessera.kube.resources import JOBS, Job, ObjectMeta, OwnerReference
from tessera.kube.resources.cluster import JobSpec, JobStatus
from tessera.kube.resources.meta import Uid

NOW = 1_800_000_000.0
ONE, TWO = JobKey("a", "one", "u1"), JobKey("a", "two", "u2")


def test_a_job_is_read_once_and_again_for_a_pod_that_started_later() -> None:
    jobs = JobDeadlines()
    assert list(jobs.due([(ONE, NOW), (ONE, NOW - 5), (TWO, NOW)])) == [ONE, TWO]
    jobs.put(ONE, NOW + 600)
    assert list(jobs.due([(ONE, NOW), (TWO, NOW)])) == [TWO]
    assert list(jobs.due([(ONE, NOW), (ONE, NOW + 2)])) == [ONE]


def test_jobs_that_were_never_read_come_before_those_that_are_read_again() -> None:
    jobs = JobDeadlines()
    jobs.due([(ONE, NOW)])
    jobs.put(ONE, None)
    assert list(jobs.due([(ONE, NOW + 60), (TWO, NOW)])) == [TWO, ONE]


def test_a_job_without_pods_is_forgotten() -> None:
    jobs = JobDeadlines()
    jobs.put(ONE, NOW + 600)
    assert jobs.end_of(ONE, NOW) == NOW + 600
    jobs.due([(TWO, NOW)])
    assert jobs.end_of(ONE, NOW) is None


def test_a_deadline_that_is_over_while_a_pod_runs_counts_no_more() -> None:
    jobs = JobDeadlines()
    jobs.put(ONE, NOW + 600)
    assert jobs.end_of(ONE, NOW + 660) == NOW + 600
    assert jobs.end_of(ONE, NOW + 800) is None
    assert jobs.end_of(TWO, NOW) is None
    assert jobs.end_of(None, NOW) is None


@pytest.mark.parametrize(
    ("owner", "job"),
    [
        (OwnerReference(api_version="batch/v1", kind="Job", name="one", uid=Uid("u1"), controller=True), ONE),
        (OwnerReference(api_version="example.com/v1", kind="Job", name="one", uid=Uid("u1")), None),
        (OwnerReference(api_version="batch/v1", kind="Job", name="100%", uid=Uid("u1")), None),
        (OwnerReference(api_version="batch/v1", kind="Job", name="../one", uid=Uid("u1")), None),
        (OwnerReference(api_version="batch/v1", kind="Job", name="", uid=Uid("u1")), None),
        (OwnerReference(api_version="apps/v1", kind="ReplicaSet", name="one", uid=Uid("u1")), None),
        (None, None),
    ],
)
def test_whose_deadline_is_read(owner: OwnerReference | None, job: JobKey | None) -> None:
    assert owning_job("a", owner) == job


def job(name: str, **spec: Any) -> dict[str, Any]:
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}
    return {"metadata": {"name": name}, "spec": {"template": template, **spec}}


def test_a_job_that_is_gone_or_is_another_one_of_that_name_has_no_deadline() -> None:
    async def story(lab: Lab) -> None:
        started = {"status": {"startTime": "2027-01-15T08:00:00Z"}}
        keys = []
        for name in ("one", "two"):
            made = await lab.client.create(JOBS.as_dicts(), job(name, activeDeadlineSeconds=600), "default")
            await lab.client.merge_patch(JOBS.as_dicts(), name, started, "default", subresource="status")
            keys.append(JobKey("default", name, made["metadata"]["uid"]))
        other, gone = JobKey("default", "two", "of-before"), JobKey("default", "three", "u")
        deadlines = JobDeadlines()
        asked = [(each, NOW) for each in (keys[0], other, gone)]
        await JobReader(lab.client).read(deadlines.due(asked), deadlines)
        assert [deadlines.end_of(each, NOW) for each, _ in asked] == [NOW + 600, None, None]
        assert list(deadlines.due(asked)) == []

    in_lab(story)


def test_no_more_jobs_are_read_at_a_time_than_the_limit_allows() -> None:
    async def story(lab: Lab) -> None:
        keys = [JobKey("default", f"j{number}", "u") for number in range(int(JOBS_READ) + 3)]
        deadlines = JobDeadlines()
        await JobReader(lab.client).read(keys, deadlines)
        assert list(deadlines.due([(each, 0.0) for each in keys])) == keys[int(JOBS_READ) :]

    in_lab(story)


class RefusingClient(Client):
    """Answers some names with an error, and knows all other Jobs."""

    def __init__(self, errors: Mapping[str, Exception]) -> None:
        self._errors = errors
        self.asked: list[str] = []

    async def get(self, resource: Any, name: str, namespace: str | None = None, **_: Any) -> Any:
        self.asked.append(name)
        if name in self._errors:
            raise self._errors[name]
        meta = ObjectMeta(name=name, uid=Uid("u"))
        return Job(
            metadata=meta, spec=JobSpec(active_deadline_seconds=60), status=JobStatus(start_time=rfc3339(NOW - 30))
        )


def read_rounds(errors: Mapping[str, Exception], rounds: int) -> tuple[JobDeadlines, list[list[str]]]:
    """Reads 20 Jobs in so many rounds; returns also the names that each round asked for."""
    client, deadlines = RefusingClient(errors), JobDeadlines()
    asked: list[list[str]] = []
    ahead = NOW + 3600.0  # the clock of their node is ahead
    keys = [(JobKey("a", f"j{number}", "u"), ahead) for number in range(20)]

    async def story() -> None:
        reader = JobReader(client)
        for _ in range(rounds):
            client.asked = []
            await reader.read(deadlines.due(keys), deadlines)
            asked.append(client.asked)

    asyncio.run(story())
    return deadlines, asked


@pytest.mark.parametrize("code", [200, 400, 404, 410, 422])
def test_a_job_whose_question_is_refused_has_no_deadline_and_stops_no_other(code: int) -> None:
    deadlines, asked = read_rounds({"j0": ApiError(Status(code=code, message="no"))}, 2)
    assert [len(names) for names in asked] == [20, 0]
    assert deadlines.end_of(JobKey("a", "j0", "u"), NOW) is None
    assert deadlines.end_of(JobKey("a", "j19", "u"), NOW) == NOW + 30


@pytest.mark.parametrize(
    "error", [*(ApiError(Status(code=code)) for code in (401, 403, 408, 429, 500, 503)), ConnectionError("broken")]
)
def test_after_an_error_that_may_concern_all_the_next_round_begins_behind_that_job(error: Exception) -> None:
    deadlines, asked = read_rounds({"j0": error}, 3)
    assert [len(names) for names in asked] == [8, 13, 1]
    assert (asked[0][0], asked[1][0], asked[1][-1]) == ("j0", "j8", "j0")
    assert [number for number in range(20) if deadlines.end_of(JobKey("a", f"j{number}", "u"), NOW)] == [*range(1, 20)]


def test_a_job_that_has_not_started_ends_no_pod() -> None:
    spec = JobSpec(active_deadline_seconds=600)
    assert deadline_of(Job(spec=spec)) is None
    started = JobStatus(start_time=rfc3339(NOW))
    assert deadline_of(Job(spec=spec, status=started)) == NOW + 600
    assert deadline_of(Job(status=started)) is None
