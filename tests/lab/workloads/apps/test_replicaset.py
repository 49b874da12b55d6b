"""As many pods as asked for."""

from collections.abc import Callable
from typing import Any

from tests.support.control_plane_lab import ControlPlaneLab

from tessera.kube.resources import EVENTS, PODS, REPLICASETS, RESOURCE_QUOTAS

Make = Callable[..., dict[str, Any]]


async def create(lab: ControlPlaneLab, body: dict[str, Any]) -> None:
    await lab.api.create(REPLICASETS.as_dicts(), body, "default")
    await lab.clock.sleep(0.1)


async def scale(lab: ControlPlaneLab, replicas: int) -> None:
    await lab.api.scale(REPLICASETS, "r", "default", replicas)
    await lab.clock.sleep(0.1)


async def test_it_makes_exactly_as_many_pods_and_counts_them(lab: ControlPlaneLab, workload: Make) -> None:
    lab.start_controllers()
    await lab.start_nodes("n1")
    await create(lab, workload("r", replicas=20))
    assert len(await lab.all(PODS)) == 20
    status = (await lab.get(REPLICASETS, "r"))["status"]
    assert {status[name] for name in ("replicas", "readyReplicas", "availableReplicas")} == {20}
    assert status["observedGeneration"] == 1


async def test_a_lost_pod_is_replaced(lab: ControlPlaneLab, workload: Make) -> None:
    lab.start_workloads()
    await create(lab, workload("r", replicas=2))
    first, _ = await lab.all(PODS)
    await lab.api.delete(PODS, first["metadata"]["name"], "default", grace_seconds=0)
    await lab.clock.sleep(0.1)
    names = {pod["metadata"]["name"] for pod in await lab.all(PODS)}
    assert len(names) == 2
    assert first["metadata"]["name"] not in names


async def test_the_pod_that_does_not_run_is_deleted_first(lab: ControlPlaneLab, workload: Make) -> None:
    lab.start_controllers()
    await lab.start_nodes("n1", max_pods=2)
    await create(lab, workload("r", replicas=3))
    running = {pod["metadata"]["name"] for pod in await lab.all(PODS) if pod["spec"].get("nodeName")}
    assert len(running) == 2
    await scale(lab, 2)
    assert {pod["metadata"]["name"] for pod in await lab.all(PODS)} == running


async def test_a_matching_orphan_is_adopted_and_one_that_stops_matching_is_released(
    lab: ControlPlaneLab, workload: Make
) -> None:
    lab.start_workloads()
    orphan = {"metadata": {"name": "orphan", "labels": {"app": "r"}}, **workload("r")["spec"]["template"]}
    orphan["metadata"] = {"name": "orphan", "labels": {"app": "r"}}
    await lab.api.create(PODS.as_dicts(), orphan, "default")
    await lab.clock.sleep(0.1)
    await create(lab, workload("r", replicas=2))
    adopted = await lab.get(PODS, "orphan")
    assert adopted["metadata"]["ownerReferences"][0]["name"] == "r"
    assert len(await lab.all(PODS)) == 2
    patch = {"metadata": {"labels": {"app": "other"}}}
    await lab.api.merge_patch(PODS.as_dicts(), "orphan", patch, "default")
    await lab.clock.sleep(0.1)
    assert not (await lab.get(PODS, "orphan"))["metadata"].get("ownerReferences")
    assert len(await lab.all(PODS)) == 3


async def test_scaling_to_nothing_and_back(lab: ControlPlaneLab, workload: Make) -> None:
    lab.start_workloads()
    await create(lab, workload("r", replicas=3))
    await scale(lab, 0)
    assert await lab.all(PODS) == []
    assert (await lab.get(REPLICASETS, "r"))["status"]["replicas"] == 0
    await scale(lab, 1)
    assert len(await lab.all(PODS)) == 1


async def test_a_refused_pod_is_told_once_and_tried_again_after_growing_pauses(
    lab: ControlPlaneLab, workload: Make
) -> None:
    lab.start_workloads()
    quota = {"metadata": {"name": "few"}, "spec": {"hard": {"pods": "1"}}}
    await lab.api.create(RESOURCE_QUOTAS.as_dicts(), quota, "default")
    await create(lab, workload("r", replicas=3))
    await lab.clock.sleep(60)
    assert len(await lab.all(PODS)) == 1
    (failure,) = (await lab.get(REPLICASETS, "r"))["status"]["conditions"]
    assert (failure["type"], failure["reason"]) == ("ReplicaFailure", "FailedCreate")
    assert "exceeded quota: few" in failure["message"]
    refusals = [event for event in await lab.all(EVENTS) if event["reason"] == "FailedCreate"]
    assert len(refusals) < 50
