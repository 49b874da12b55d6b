"""Windows and rates hold back what metrics ask for."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera_lab.apiserver.kinds.autoscaler_rules import default_autoscaler
from tessera_lab.workloads.autoscaling.replica_calculator import Limits, ScaleHistory

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
