"""The status of a PodDisruptionBudget follows its pods, and evictions go as far as it allows."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.support.control_plane_lab import ControlPlaneLab

from tessera.clock import rfc3339
from tessera.kube.errors import TooManyRequests
from tessera.kube.resources import DEPLOYMENTS, POD_DISRUPTION_BUDGETS, PODS
from tessera_lab.workloads.objects.disruption_budgets import budget_status, covered

Make = Callable[..., dict[str, Any]]
BUDGETS = POD_DISRUPTION_BUDGETS.as_dicts()
NOW = rfc3339(0)


def budget(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "b", "namespace": "default", "generation": 3}, "spec": spec}


def pod(name: str, *, ready: bool = True, deleted: bool = False) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "default", "labels": {"app": "d"}}
    condition = {"type": "Ready", "status": "True" if ready else "False"}
    return {
        "metadata": metadata | ({"deletionTimestamp": NOW} if deleted else {}),
        "status": {"conditions": [condition]},
    }


@pytest.mark.parametrize(
    ("spec", "expected", "wanted"),
    [
        ({"maxUnavailable": 1}, 3, (3, 2, 0)),  # one of three is not ready
        ({"maxUnavailable": 2}, 3, (3, 1, 1)),
        ({"maxUnavailable": "34%"}, 3, (3, 1, 1)),  # 1.02, rounded up
        ({"maxUnavailable": 9}, 3, (3, 0, 2)),
        ({"minAvailable": 1}, 3, (3, 1, 1)),
        ({"minAvailable": 0}, None, (3, 0, 2)),
        ({"minAvailable": "50%"}, 3, (3, 2, 0)),
        ({"minAvailable": "50%"}, 4, (4, 2, 0)),
        ({"maxUnavailable": 1}, None, (0, 0, 0)),  # of what, nobody knows
        ({}, 3, (3, 2, 0)),
    ],
)
def test_so_many_may_go(spec: dict[str, Any], expected: int | None, wanted: tuple[int, int, int]) -> None:
    pods = [pod("a"), pod("b"), pod("c", ready=False)]
    status = budget_status(budget(**spec), pods, expected, {}, NOW)
    assert (status["expectedPods"], status["desiredHealthy"], status["disruptionsAllowed"]) == wanted
    assert status["observedGeneration"] == 3
    (condition,) = status["conditions"]
    assert condition["status"] == ("True" if wanted[2] else "False")
    unknown = expected is None and "maxUnavailable" in spec
    assert (condition["reason"] == "SyncFailed") == unknown


def test_a_pod_that_is_deleted_or_was_evicted_is_not_healthy() -> None:
    pods = [pod("a"), pod("b", deleted=True), pod("c")]
    status = budget_status(budget(minAvailable=1), pods, None, {"c": NOW}, NOW)
    assert (status["currentHealthy"], status["disruptionsAllowed"], status["disruptedPods"]) == (1, 0, {"c": NOW})


def test_an_empty_selector_covers_all_pods_of_the_namespace_and_an_absent_one_none() -> None:
    other = pod("b")
    other["metadata"]["namespace"] = "other"
    pods = [pod("a"), other]
    assert covered(budget(selector={}), pods) == pods[:1]
    assert covered(budget(selector={"matchLabels": {"app": "d"}}), pods) == pods[:1]
    assert covered(budget(selector={"matchLabels": {"app": "e"}}), pods) == []
    assert covered(budget(), pods) == []


async def test_a_second_pod_is_evicted_once_the_first_is_replaced(lab: ControlPlaneLab, workload: Make) -> None:
    lab.start_controllers()
    await lab.start_nodes("n1")
    await lab.api.create(DEPLOYMENTS.as_dicts(), workload("d", replicas=2), "default")
    await lab.api.create(
        BUDGETS,
        {"metadata": {"name": "b"}, "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"app": "d"}}}},
        "default",
    )
    await lab.clock.sleep(10)
    assert (await lab.get(BUDGETS, "b"))["status"]["disruptionsAllowed"] == 1
    first, second = [each["metadata"]["name"] for each in await lab.all(PODS)]
    await evict(lab, first)
    with pytest.raises(TooManyRequests):
        await evict(lab, second)
    await lab.clock.sleep(60)
    status = (await lab.get(BUDGETS, "b"))["status"]
    assert (status["disruptionsAllowed"], status["currentHealthy"]) == (1, 2)
    assert not status.get("disruptedPods")
    await evict(lab, second)


async def evict(lab: ControlPlaneLab, name: str) -> None:
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": "default"}}
    await lab.api.request("POST", f"/api/v1/namespaces/default/pods/{name}/eviction", body=body)
