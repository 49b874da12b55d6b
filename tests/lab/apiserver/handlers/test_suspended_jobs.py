"""What may change in the template of a suspended Job (KEP-2926). Words are kube-apiserver's."""

from typing import Any

import pytest
from tests.support.api_user import ApiUser

JOBS = "/apis/batch/v1/namespaces/default/jobs"
TERM = {"matchExpressions": [{"key": "gpu", "operator": "Exists"}]}
NODES = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [TERM]}}

DIRECTIVES: list[dict[str, Any]] = [
    {"spec": {"nodeSelector": {"gpu": "a100"}}},
    {"spec": {"tolerations": [{"key": "gpu", "operator": "Exists"}]}},
    {"spec": {"affinity": {"nodeAffinity": NODES}}},
    {"spec": {"schedulingGates": [{"name": "example.com/wait"}]}},
    {"metadata": {"labels": {"team": "a"}}},
    {"metadata": {"annotations": {"team": "a"}}},
]
OTHERS: list[dict[str, Any]] = [
    {"spec": {"affinity": {"podAntiAffinity": {}}}},
    {"spec": {"priorityClassName": "high"}},
    {"spec": {"containers": [{"name": "c", "image": "other"}]}},
]


async def make_job(api: ApiUser, *, suspend: bool) -> None:
    pods = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}
    made = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}}
    await api("POST", JOBS, {**made, "spec": {"suspend": suspend, "template": pods}})


@pytest.mark.parametrize("change", DIRECTIVES)
async def test_where_its_pods_go_may_change(api: ApiUser, change: dict[str, Any]) -> None:
    await make_job(api, suspend=True)
    assert "code" not in await api.merge(f"{JOBS}/j", {"spec": {"template": change}})
    # Kueue starts it and sets the nodes in one write.
    back = {"spec": {"nodeSelector": {"gpu": "h100"}}}
    assert "code" not in await api.merge(f"{JOBS}/j", {"spec": {"suspend": False, "template": back}})


@pytest.mark.parametrize("change", OTHERS)
async def test_what_its_pods_are_may_not_change(api: ApiUser, change: dict[str, Any]) -> None:
    await make_job(api, suspend=True)
    assert "field is immutable" in (await api.merge(f"{JOBS}/j", {"spec": {"template": change}}))["message"]


@pytest.mark.parametrize("change", DIRECTIVES)
async def test_nothing_changes_once_it_has_started(api: ApiUser, change: dict[str, Any]) -> None:
    await make_job(api, suspend=False)
    assert "field is immutable" in (await api.merge(f"{JOBS}/j", {"spec": {"template": change}}))["message"]
    await api.merge(f"{JOBS}/j/status", {"status": {"startTime": "2026-01-01T00:00:00Z"}})
    await api.merge(f"{JOBS}/j", {"spec": {"suspend": True}})
    assert "field is immutable" in (await api.merge(f"{JOBS}/j", {"spec": {"template": change}}))["message"]
    await api.merge(f"{JOBS}/j/status", {"status": {"startTime": None}})
    assert "code" not in await api.merge(f"{JOBS}/j", {"spec": {"template": change}})
