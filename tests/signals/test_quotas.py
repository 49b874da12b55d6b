"""How many more pods the ResourceQuotas of a namespace admit."""

from typing import Any

import pytest

from tessera.signals.quotas import quota_room

POD = {"cpu": 500, "memory": 1 << 30, "hugepages-2Mi": 1 << 21, "nvidia.com/mig-3g.20gb": 1}


def quota(hard: dict[str, str], used: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    return {"spec": {"hard": hard, **spec}, "status": {"hard": hard, "used": used or {}}}


@pytest.mark.parametrize(
    ("hard", "used", "room"),
    [
        ({"requests.nvidia.com/mig-3g.20gb": "4"}, {"requests.nvidia.com/mig-3g.20gb": "1"}, 3),
        ({"requests.nvidia.com/mig-3g.20gb": "1"}, {"requests.nvidia.com/mig-3g.20gb": "4"}, 0),
        ({"pods": "5"}, {"pods": "3"}, 2),
        ({"count/pods": "5"}, {"count/pods": "3"}, 2),
        ({"cpu": "2"}, {"cpu": "900m"}, 2),
        ({"requests.memory": "10Gi"}, {"requests.memory": "512Mi"}, 9),
        ({"requests.memory": "10Gi", "pods": "1"}, {}, 1),
        ({"hugepages-2Mi": "10Mi"}, {"hugepages-2Mi": "4Mi"}, 3),
        ({"limits.memory": "6Gi"}, {"limits.memory": "1Gi"}, 2),
        ({"requests.nvidia.com/mig-7g.40gb": "0", "services": "0", "limits.cpu": "0"}, {}, None),
        ({"pods": "many"}, {}, None),
        ({}, {}, None),
    ],
)
def test_a_quota_bounds_the_room_by_what_it_has_left(hard: dict[str, str], used: dict[str, str], room: object) -> None:
    assert quota_room([quota(hard, used)], POD, {"memory": 2 << 30}) == room


def test_the_least_of_several_quotas_counts() -> None:
    assert quota_room([quota({"pods": "5"}), quota({"cpu": "1"}), quota({})], POD) == 2


@pytest.mark.parametrize(
    ("spec", "room"),
    [
        ({"scopes": ["NotTerminating"]}, 0),
        ({"scopes": ["Terminating"]}, None),
        ({"scopes": ["NotTerminating", "BestEffort"]}, None),
        ({"scopes": ["NotBestEffort"]}, 0),
        ({"scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "Exists"}]}}, None),
    ],
)
def test_a_quota_for_some_pods_bounds_the_room_of_such_pods(spec: dict[str, Any], room: object) -> None:
    assert quota_room([quota({"pods": "0"}, **spec)], POD) == room


def test_pods_without_cpu_and_memory_are_best_effort() -> None:
    found = quota({"pods": "3"}, scopes=["BestEffort"])
    assert quota_room([found], {"nvidia.com/mig-3g.20gb": 1}, {"nvidia.com/mig-3g.20gb": 1}) == 3
    assert quota_room([found], {"nvidia.com/mig-3g.20gb": 1}, {"cpu": 1}) is None


def test_a_quota_without_a_status_bounds_no_room_yet() -> None:
    assert quota_room([{"spec": {"hard": {"pods": "0"}}}], POD) is None
