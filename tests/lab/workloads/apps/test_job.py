"""Pods that run to completion."""

from collections.abc import Callable
from typing import Any

from tests.support.control_plane_lab import ControlPlaneLab

from tessera.kube.resources import JOBS, PODS

Make = Callable[..., dict[str, Any]]


async def run(lab: ControlPlaneLab, name: str, template: dict[str, Any], **spec: Any) -> None:
    lab.start_controllers()
    await lab.start_nodes("n1")
    await lab.api.create(
        JOBS.as_dicts(), {"metadata": {"name": name}, "spec": {"template": template, **spec}}, "default"
    )
    await lab.clock.sleep(0.5)


async def ended(lab: ControlPlaneLab, name: str) -> tuple[str, str] | None:
    for each in (await lab.get(JOBS, name))["status"].get("conditions", []):
        if each["type"] in {"Complete", "Failed"} and each["status"] == "True":
            return each["type"], each["reason"]
    return None


async def test_it_runs_as_many_at_a_time_as_allowed_until_enough_succeeded(
    lab: ControlPlaneLab, template: Make
) -> None:
    await run(lab, "j", template("sleep", "10", restartPolicy="Never"), completions=3, parallelism=2)
    assert (await lab.get(JOBS, "j"))["status"]["active"] == 2
    await lab.clock.sleep(11)
    status = (await lab.get(JOBS, "j"))["status"]
    assert (status["active"], status["succeeded"]) == (1, 2)
    await lab.clock.sleep(10)
    status = (await lab.get(JOBS, "j"))["status"]
    assert status["succeeded"] == 3
    assert "completionTime" in status
    assert await ended(lab, "j") == ("Complete", "CompletionsReached")
    assert len(await lab.all(PODS)) == 3
    assert ("Completed", "Job completed") in await lab.notes("j")


async def test_failures_are_replaced_after_pauses_up_to_the_limit(lab: ControlPlaneLab, template: Make) -> None:
    await run(lab, "j", template("false", restartPolicy="Never"), backoffLimit=2)
    counts = []
    for seconds in (0, 10, 20):
        await lab.clock.sleep(seconds)
        counts.append((await lab.get(JOBS, "j"))["status"]["failed"])
    assert counts == [1, 2, 3]
    assert await ended(lab, "j") == ("Failed", "BackoffLimitExceeded")


async def test_restarts_by_kubelet_count_too(lab: ControlPlaneLab, template: Make) -> None:
    await run(lab, "j", template("false", restartPolicy="OnFailure"), backoffLimit=1)
    await lab.clock.sleep(30)
    assert await ended(lab, "j") == ("Failed", "BackoffLimitExceeded")
    assert await lab.all(PODS) == []


async def test_a_job_has_its_deadline(lab: ControlPlaneLab, template: Make) -> None:
    await run(lab, "j", template(restartPolicy="Never"), activeDeadlineSeconds=60)
    await lab.clock.sleep(61)
    assert await ended(lab, "j") == ("Failed", "DeadlineExceeded")
    assert await lab.all(PODS) == []


async def test_a_suspended_job_waits(lab: ControlPlaneLab, template: Make) -> None:
    await run(lab, "j", template("true", restartPolicy="Never"), suspend=True)
    assert await lab.all(PODS) == []
    await lab.api.merge_patch(JOBS.as_dicts(), "j", {"spec": {"suspend": False}}, "default")
    await lab.clock.sleep(0.5)
    assert await ended(lab, "j") == ("Complete", "CompletionsReached")


async def test_a_finished_job_goes_after_its_time(lab: ControlPlaneLab, template: Make) -> None:
    await run(lab, "j", template("true", restartPolicy="Never"), ttlSecondsAfterFinished=30)
    assert await lab.exists(JOBS, "j")
    await lab.clock.sleep(32)
    assert not await lab.exists(JOBS, "j")
    assert await lab.all(PODS) == []


async def test_what_is_not_implemented_fails_by_name(lab: ControlPlaneLab, template: Make) -> None:
    pods = template("true", restartPolicy="Never")
    await run(lab, "j", pods, completionMode="Indexed", completions=1)
    assert await ended(lab, "j") == ("Failed", "NotImplemented")
    assert ("NotImplemented", "spec.completionMode: Indexed is not implemented by the lab") in await lab.notes("j")
