"""The decisions of a rollout."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera_lab.workloads.apps.rollout import (
    ReplicaSetScale,
    RolloutBounds,
    bounds,
    new_replicaset_size,
    old_to_forget,
    replicas,
    scale_down_old,
    template_hash,
)


def deployment(wanted: int, surge: int | str = "25%", unavailable: int | str = "25%", **spec: Any) -> dict[str, Any]:
    rolling = {"maxSurge": surge, "maxUnavailable": unavailable}
    strategy = {"type": "RollingUpdate", "rollingUpdate": rolling}
    return {"metadata": {"name": "d"}, "spec": {"replicas": wanted, "strategy": strategy, **spec}}


def replicaset(name: str, wanted: int, available: int | None = None, revision: int = 1) -> dict[str, Any]:
    ready = wanted if available is None else available
    return {
        "metadata": {"name": name, "annotations": {"deployment.kubernetes.io/revision": str(revision)}},
        "spec": {"replicas": wanted},
        "status": {"replicas": wanted, "availableReplicas": ready},
    }


@pytest.mark.parametrize(
    ("wanted", "surge", "unavailable", "expected"),
    [
        (10, "25%", "25%", RolloutBounds(3, 2)),
        (1, "25%", "25%", RolloutBounds(1, 0)),
        (4, 0, 0, RolloutBounds(0, 1)),
        (4, 2, 0, RolloutBounds(2, 0)),
        (3, 0, "100%", RolloutBounds(0, 3)),
        (2, 1, 5, RolloutBounds(1, 2)),
    ],
)
def test_surge_rounds_up_and_unavailable_down(
    wanted: int, surge: int, unavailable: int, expected: RolloutBounds
) -> None:
    assert bounds(deployment(wanted, surge, unavailable)) == expected


def test_the_new_replicaset_grows_as_far_as_the_surge_allows() -> None:
    old = replicaset("old", 4)
    assert new_replicaset_size(deployment(4), [old], 0) == 1
    assert new_replicaset_size(deployment(4), [replicaset("new", 1), replicaset("old", 2)], 1) == 3


def test_a_recreated_deployment_starts_whole() -> None:
    spec = deployment(4)
    spec["spec"]["strategy"] = {"type": "Recreate"}
    assert new_replicaset_size(spec, [], 0) == 4


def test_broken_old_pods_go_before_sound_ones() -> None:
    older, newer = replicaset("older", 2, available=2), replicaset("newer", 2, available=0)
    assert scale_down_old(deployment(4), replicaset("new", 1, available=0), [older, newer]) == [
        ReplicaSetScale("newer", 1)
    ]


def test_the_history_keeps_the_newest_revisions() -> None:
    old = [replicaset(f"r{number}", 0, revision=number) for number in range(1, 5)]
    gone = old_to_forget(deployment(1, revisionHistoryLimit=1), old)
    assert [each["metadata"]["name"] for each in gone] == ["r1", "r2", "r3"]


def test_equal_templates_have_equal_hashes_that_collisions_move() -> None:
    one, same = {"spec": {"a": 1, "b": 2}}, {"spec": {"b": 2, "a": 1}}
    assert template_hash(one, 0) == template_hash(same, 0)
    assert template_hash(one, 0) != template_hash(one, 1)


@given(st.integers(1, 12), st.integers(0, 5), st.integers(0, 5), st.randoms(use_true_random=False))
def test_a_rollout_ends_and_never_breaks_its_bounds(wanted: int, surge: int, unavailable: int, rng: Any) -> None:
    spec = deployment(wanted, surge, unavailable)
    limits = bounds(spec)
    old, new = replicaset("old", wanted), replicaset("new", 0)
    for _ in range(200):
        new["spec"]["replicas"] = new_replicaset_size(spec, [new, old], replicas(new))
        for scaling in scale_down_old(spec, new, [old]):
            old["spec"]["replicas"] = scaling.replicas
        assert replicas(new) + replicas(old) <= wanted + limits.surge
        old["status"]["availableReplicas"] = min(old["status"]["availableReplicas"], replicas(old))
        available = old["status"]["availableReplicas"] + new["status"]["availableReplicas"]
        assert available >= wanted - limits.unavailable
        if replicas(old) == 0 and new["status"]["availableReplicas"] == wanted:
            return
        if rng.random() < 0.7 and new["status"]["availableReplicas"] < replicas(new):
            new["status"]["availableReplicas"] += 1
    raise AssertionError("the rollout did not end")
