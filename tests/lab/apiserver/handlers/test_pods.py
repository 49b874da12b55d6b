"""Pods: what tests/conformance does not ask. Words are kube-apiserver's."""

from typing import Any

import pytest
from tests.support.api_user import ApiUser

PODS = "/api/v1/namespaces/default/pods"


def asking(make_pod: Any, limits: Any, requests: Any = None) -> Any:
    made = make_pod("a")
    made["spec"]["containers"][0]["resources"] = {"limits": limits, **({"requests": requests} if requests else {})}
    return made


@pytest.mark.parametrize(
    ("limits", "requests", "text"),
    [
        (
            {},
            {"nvidia.com/gpu": "1"},
            "spec.containers[0].resources.limits: Required value: Limit must be set for non overcommitable resources",
        ),
        (
            {"cpu": "1"},
            {"cpu": "2"},
            'spec.containers[0].resources.requests: Invalid value: "2": must be less than or equal to cpu limit of 1',
        ),
        (
            {"nvidia.com/gpu": "-1"},
            None,
            (
                'spec.containers[0].resources.limits[nvidia.com/gpu]: Invalid value: "-1": '
                "must be greater than or equal to 0"
            ),
        ),
    ],
)
async def test_amounts_that_make_no_sense_are_refused(
    api: ApiUser, make_pod: Any, limits: Any, requests: Any, text: str
) -> None:
    refused = await api("POST", PODS, asking(make_pod, limits, requests))
    assert refused["code"] == 422
    assert text in refused["message"]


async def test_a_toleration_may_come_and_not_go(api: ApiUser, make_pod: Any) -> None:
    made = await api("POST", PODS, make_pod("a"))
    made["spec"]["tolerations"].append({"key": "x", "operator": "Exists"})
    now = await api("PUT", f"{PODS}/a", made)
    now["spec"]["tolerations"] = []
    refused = await api("PUT", f"{PODS}/a", now)
    assert "existing toleration can not be modified except its tolerationSeconds" in refused["message"]


async def test_the_systems_priority_class_is_there(api: ApiUser, make_pod: Any) -> None:
    made = await api("POST", PODS, make_pod("a", priorityClassName="system-node-critical"))
    assert made["spec"]["priority"] == 2_000_001_000


async def test_wrong_types_are_refused_before_anything_looks_inside(api: ApiUser, make_pod: Any) -> None:
    assert (await api("POST", PODS, {**make_pod("a"), "spec": "x"}))["code"] == 400
    assert (await api("POST", PODS, make_pod("a", containers=[1])))["code"] == 400


async def test_eviction_respects_a_budget(api: ApiUser, make_pod: Any) -> None:
    made = make_pod("a", nodeName="n1")
    made["metadata"]["labels"] = {"app": "x"}
    await api("POST", PODS, made)
    await api.merge(f"{PODS}/a/status", {"status": {"phase": "Running"}})
    budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": "x"}}}
    budget = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "b"}, "spec": spec}
    await api("POST", budgets, budget)
    allowed = {"observedGeneration": 1, "disruptionsAllowed": 0, "desiredHealthy": 1, "currentHealthy": 1}
    await api.merge(f"{budgets}/b/status", {"status": {**allowed, "expectedPods": 1}})
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "a"}}
    refused = await api("POST", f"{PODS}/a/eviction", eviction)
    assert refused["message"] == "Cannot evict pod as it would violate the pod's disruption budget."
    assert refused["code"] == 429
    await api("DELETE", f"{budgets}/b")
    assert (await api("POST", f"{PODS}/a/eviction", eviction))["status"] == "Success"
    assert (await api("GET", f"{PODS}/a"))["metadata"]["deletionTimestamp"]
