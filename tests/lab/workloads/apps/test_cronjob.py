"""CronJobs: Jobs at their times, late and overlapping ones, and the history."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tests.support.control_plane_lab import ControlPlaneLab

from tessera.kube.errors import ApiError
from tessera.kube.resources import CRONJOBS, JOBS, PODS

Make = Callable[..., dict[str, Any]]

MINUTE = 60.0


async def begin(lab: ControlPlaneLab, template: dict[str, Any], schedule: str = "* * * * *", **spec: Any) -> None:
    """Starts a cluster with a CronJob, half a minute before a full minute."""
    lab.start_controllers()
    await lab.start_nodes("n1")
    await lab.clock.sleep((30 - lab.clock.now()) % MINUTE)
    job = {"spec": {"template": template}, "metadata": {"labels": {"kind": "report"}, "annotations": {"a": "b"}}}
    await lab.api.create(
        CRONJOBS.as_dicts(),
        {"metadata": {"name": "c"}, "spec": {"schedule": schedule, "jobTemplate": job, **spec}},
        "default",
    )


async def change(lab: ControlPlaneLab, **spec: Any) -> None:
    await lab.api.merge_patch(CRONJOBS.as_dicts(), "c", {"spec": spec}, "default")


async def jobs(lab: ControlPlaneLab) -> list[dict[str, Any]]:
    """Its Jobs by name: those of earlier times first."""
    return sorted(await lab.all(JOBS), key=lambda job: str(job["metadata"]["name"]))


async def reasons(lab: ControlPlaneLab) -> set[str]:
    return {reason for reason, _ in await lab.notes("c")}


async def test_a_job_at_each_time_and_the_last_three_stay(lab: ControlPlaneLab, template: Make) -> None:
    await begin(lab, template("sleep", "10", restartPolicy="Never"))
    await lab.clock.sleep(29)
    assert await jobs(lab) == []
    await lab.clock.sleep(6)
    (job,) = await jobs(lab)
    minute = int(lab.clock.now()) // 60
    assert (job["metadata"]["name"], job["metadata"]["labels"]) == (f"c-{minute}", {"kind": "report"})
    assert job["metadata"]["annotations"]["a"] == "b"
    assert "batch.kubernetes.io/cronjob-scheduled-timestamp" in job["metadata"]["annotations"]
    status = (await lab.get(CRONJOBS, "c"))["status"]
    assert [each["uid"] for each in status["active"]] == [job["metadata"]["uid"]]
    await lab.clock.sleep(10)
    status = (await lab.get(CRONJOBS, "c"))["status"]
    assert status["active"] == []
    assert status["lastSuccessfulTime"] > status["lastScheduleTime"]
    await lab.clock.sleep(5 * MINUTE)
    assert [each["metadata"]["name"] for each in await jobs(lab)] == [f"c-{minute + i}" for i in (3, 4, 5)]
    assert await reasons(lab) == {"SuccessfulCreate", "SawCompletedJob", "SuccessfulDelete"}


@pytest.mark.parametrize(
    ("policy", "counts", "reason"),
    [
        ("Allow", (3, 3), "SuccessfulCreate"),
        ("Forbid", (1, 1), "JobAlreadyActive"),
        ("Replace", (1, 3), "SuccessfulDelete"),
    ],
)
async def test_jobs_that_overlap(
    lab: ControlPlaneLab, template: Make, policy: str, counts: tuple[int, int], reason: str
) -> None:
    """Counts are of the Jobs that run at the end, and of all that ran."""
    await begin(lab, template("sleep", "1h", restartPolicy="Never"), concurrencyPolicy=policy)
    names = set[str]()
    for _ in range(3):
        await lab.clock.sleep(MINUTE)
        names |= {job["metadata"]["name"] for job in await jobs(lab)}
    assert (len(await jobs(lab)), len(names)) == counts
    assert len((await lab.get(CRONJOBS, "c"))["status"]["active"]) == counts[0]
    assert reason in await reasons(lab)


async def test_of_failed_jobs_the_last_one_stays(lab: ControlPlaneLab, template: Make) -> None:
    failing = template("false", restartPolicy="Never")
    await begin(lab, failing)
    await change(lab, jobTemplate={"spec": {"backoffLimit": 0}})
    await lab.clock.sleep(3 * MINUTE)
    (job,) = await jobs(lab)
    assert job["status"]["conditions"][-1]["type"] == "Failed"
    assert "lastSuccessfulTime" not in (await lab.get(CRONJOBS, "c"))["status"]
    await change(lab, failedJobsHistoryLimit=0)
    await lab.clock.sleep(1)
    assert await jobs(lab) == []


async def test_times_that_were_missed(lab: ControlPlaneLab, template: Make) -> None:
    """Of those while it was suspended the last one counts, unless it is too late for its deadline."""
    await begin(lab, template("sleep", "1", restartPolicy="Never"), suspend=True, startingDeadlineSeconds=20)
    await lab.clock.sleep(5 * MINUTE)
    assert await jobs(lab) == []
    await change(lab, suspend=False)
    await lab.clock.sleep(1)
    assert await jobs(lab) == []
    await change(lab, startingDeadlineSeconds=200)
    await lab.clock.sleep(1)
    (job,) = await jobs(lab)
    assert job["metadata"]["name"] == f"c-{int(lab.clock.now()) // 60}"


async def test_very_many_missed_times_are_told(lab: ControlPlaneLab, template: Make) -> None:
    await begin(lab, template("sleep", "1", restartPolicy="Never"), suspend=True)
    await lab.clock.sleep(110 * MINUTE)
    await change(lab, suspend=False)
    await lab.clock.sleep(1)
    assert len(await jobs(lab)) == 1
    assert "TooManyMissedTimes" in await reasons(lab)


async def test_a_time_is_served_once_though_its_controller_dies(lab: ControlPlaneLab, template: Make) -> None:
    """Its Job was made, and the status was not yet written."""
    await begin(lab, template("sleep", "1h", restartPolicy="Never"))
    await lab.clock.sleep(35)
    await lab.api.merge_patch(
        CRONJOBS.as_dicts(),
        "c",
        {"status": {"active": None, "lastScheduleTime": None}},
        "default",
        subresource="status",
    )
    await change(lab, suspend=False, failedJobsHistoryLimit=2)
    await lab.clock.sleep(1)
    (job,) = await jobs(lab)
    status = (await lab.get(CRONJOBS, "c"))["status"]
    assert [each["uid"] for each in status["active"]] == [job["metadata"]["uid"]]


async def test_its_jobs_and_their_pods_go_with_it(lab: ControlPlaneLab, template: Make) -> None:
    await begin(lab, template("sleep", "1h", restartPolicy="Never"))
    await lab.clock.sleep(35)
    await lab.api.delete(CRONJOBS.as_dicts(), "c", "default", propagation="Background")
    await lab.clock.sleep(60)
    assert await jobs(lab) == []
    assert await lab.all(PODS) == []


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"schedule": "often"}, 'spec.schedule: Invalid value: "often": expected exactly 5 fields, found 1'),
        ({"schedule": ""}, "spec.schedule: Required value"),
        ({"schedule": "TZ=UTC * * * * *"}, "use timeZone field instead"),
        ({"timeZone": "Nowhere"}, 'spec.timeZone: Invalid value: "Nowhere": unknown time zone Nowhere'),
        ({"concurrencyPolicy": "Maybe"}, 'spec.concurrencyPolicy: Unsupported value: "Maybe"'),
        ({"successfulJobsHistoryLimit": -1}, "spec.successfulJobsHistoryLimit: Invalid value: -1"),
        (
            {"jobTemplate": {"spec": {"template": {"spec": {"containers": [{"name": "c", "image": "i"}]}}}}},
            'spec.jobTemplate.spec.template.spec.restartPolicy: Unsupported value: "Always"',
        ),
    ],
)
async def test_what_is_refused(lab: ControlPlaneLab, template: Make, spec: dict[str, Any], said: str) -> None:
    await asyncio.sleep(0)
    job = {"spec": {"template": template("true", restartPolicy="Never")}}
    made = {"metadata": {"name": "c"}, "spec": {"schedule": "* * * * *", "jobTemplate": job, **spec}}
    with pytest.raises(ApiError) as refused:
        await lab.api.create(CRONJOBS.as_dicts(), made, "default")
    assert said in str(refused.value)
