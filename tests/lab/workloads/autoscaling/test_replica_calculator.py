"""Replicas for one metric are those of kube-controller-manager, with its traps; windows and rates hold them back."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera_lab.apiserver.kinds.autoscaler_rules import default_autoscaler
from tessera_lab.workloads.autoscaling.replica_calculator import (
    Limits,
    MetricError,
    ScaleHistory,
    Target,
    Tolerances,
    by_average,
    by_pods,
    by_value,
)

USUAL = Tolerances()


def pod(name: str, *, ready: bool = True, phase: str = "Running", deleted: bool = False) -> dict[str, Any]:
    metadata = {"name": name} | ({"deletionTimestamp": "2026-01-01T00:00:00Z"} if deleted else {})
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    return {"metadata": metadata, "status": {"phase": phase, "conditions": conditions}}


def target(replicas: int, observed: int | None = None, *, loading: int = 0) -> Target:
    pods = [pod(f"p{each}") for each in range(replicas - loading)]
    pods += [pod(f"l{each}", ready=False) for each in range(loading)]
    return Target(replicas, replicas if observed is None else observed, pods)


@pytest.mark.parametrize(
    ("usage", "aim", "wanted"),
    [
        (40_000, target(2), 4),
        (40_001, target(2), 5),  # rounded up
        (21_000, target(2), 2),  # within a tenth
        (19_000, target(2), 2),
        (17_000, target(2), 2),  # below the tolerance, and rounded up to the same
        (0, target(2), 0),
        (30_000, target(2, observed=3), 3),  # a surge pod becomes the proposal: kubernetes/kubernetes#72775
        (10_000, target(0), 1),
    ],
)
def test_an_average_counts_the_pods_of_the_status(usage: int, aim: Target, wanted: int) -> None:
    assert by_average(usage, 10_000, aim, USUAL) == wanted


@pytest.mark.parametrize(
    ("usage", "aim", "wanted"),
    [
        (2_000, target(3), 6),
        (1_050, target(3), 3),
        (1_500, target(4, loading=3), 2),  # shrinks while its pods load
        (1_500, target(2, loading=2), 0),  # none is ready: kubernetes/kubernetes#130130
        (1_500, target(0), 2),
    ],
)
def test_a_value_multiplies_with_ready_pods(usage: int, aim: Target, wanted: int) -> None:
    assert by_value(usage, 1_000, aim, USUAL) == wanted


@pytest.mark.parametrize(
    ("pods", "values", "wanted"),
    [
        ([pod("a"), pod("b")], {"a": 20, "b": 20}, 4),
        ([pod("a"), pod("b", phase="Pending")], {"a": 20}, 2),  # the pending one counts 0 on the way up
        ([pod("a"), pod("b", phase="Pending")], {"a": 30}, 3),
        ([pod("a"), pod("b")], {"a": 4}, 2),  # the missing one counts its whole target on the way down
        ([pod("a"), pod("b"), pod("c", deleted=True)], {"a": 4, "b": 4, "c": 400}, 1),
    ],
)
def test_pods_without_a_value_hold_both_ways_back(pods: list[Any], values: dict[str, int], wanted: int) -> None:
    assert by_pods(values, 10, Target(2, 2, pods), USUAL) == wanted


def test_no_pods_or_no_values_give_no_number() -> None:
    with pytest.raises(MetricError, match="no pods returned by selector"):
        by_pods({"a": 1}, 10, Target(1, 1, []), USUAL)
    with pytest.raises(MetricError, match="did not receive metrics for targeted pods"):
        by_pods({"a": 1}, 10, Target(1, 1, [pod("a", phase="Pending")]), USUAL)


def test_a_tolerance_may_differ_by_direction() -> None:
    tight = Tolerances(down=0.5, up=0.0)
    assert by_average(20_100, 10_000, target(2), tight) == 3
    assert by_average(10_000, 10_000, target(2), tight) == 2


ONE_A_MINUTE = [{"type": "Pods", "value": 1, "periodSeconds": 60}]


def limits(most: int = 100, least: int = 1, **behavior: Any) -> Limits:
    scaler: dict[str, Any] = {"spec": {"behavior": behavior}}
    default_autoscaler(scaler)
    return Limits(least, most, scaler["spec"]["behavior"])


def play(rules: Limits, proposals: list[int], *, start: int, period: float = 15.0) -> list[int]:
    """The replicas after each proposal."""
    history, current, found = ScaleHistory(), start, []
    for index, proposal in enumerate(proposals):
        followed = history.follow(current, proposal, rules, index * period)
        history.note_scaled(current, followed.replicas, index * period)
        current = followed.replicas
        found.append(current)
    return found


def test_the_usual_rules_double_or_add_four_and_shrink_after_five_minutes() -> None:
    assert play(limits(), [50] * 4, start=1) == [5, 10, 20, 40]
    shrinks = play(limits(), [1] * 23, start=10)
    assert (shrinks[:19], shrinks[20:]) == ([10] * 19, [1] * 3)


def test_without_behavior_growth_is_twice_and_shrinking_waits_for_the_same_window() -> None:
    assert play(Limits(1, 100), [50] * 4, start=1) == [4, 8, 16, 32]
    shrinks = play(Limits(1, 100), [1] * 23, start=10)
    assert (shrinks[:19], shrinks[20:]) == ([10] * 19, [1] * 3)


@pytest.mark.parametrize(
    ("rules", "proposals", "start", "wanted"),
    [
        ({"scaleDown": {"stabilizationWindowSeconds": 0, "policies": ONE_A_MINUTE}}, [1] * 6, 5, [4, 4, 4, 4, 3, 3]),
        ({"scaleDown": {"stabilizationWindowSeconds": 0, "selectPolicy": "Disabled"}}, [1] * 3, 5, [5, 5, 5]),
        ({"scaleUp": {"selectPolicy": "Min"}}, [50] * 2, 2, [4, 8]),
        ({"scaleUp": {"stabilizationWindowSeconds": 30}}, [9, 9, 9, 9], 5, [5, 5, 9, 9]),
    ],
)
def test_policies_bound_each_way(rules: dict[str, Any], proposals: list[int], start: int, wanted: list[int]) -> None:
    assert play(limits(**rules), proposals, start=start) == wanted


def test_what_holds_back_is_named() -> None:
    history = ScaleHistory()
    assert history.follow(2, 50, limits(), 0).limit == "ScaleUpLimit"
    assert history.follow(2, 50, limits(most=3), 0).limit == "TooManyReplicas"
    at_once = limits(least=3, scaleDown={"stabilizationWindowSeconds": 0})
    assert ScaleHistory().follow(5, 1, at_once, 0).limit == "TooFewReplicas"
    assert ScaleHistory().follow(5, 5, limits(), 0).limit == ""


@given(st.lists(st.integers(0, 200), min_size=1, max_size=60), st.integers(1, 30), st.booleans())
def test_replicas_stay_within_their_bounds(proposals: list[int], start: int, plain: bool) -> None:
    rules = Limits(1, 30) if plain else limits(most=30)
    assert all(1 <= each <= 30 for each in play(rules, proposals, start=start))
