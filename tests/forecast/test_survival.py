"""How long leases last, from those that ended and those that still run."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.forecast.past_times import SurvivalCurve, quantile

AGES = st.floats(1, 1e6)


def _ended(*ages: float) -> list[tuple[float, float, bool]]:
    return [(0, each, True) for each in ages]


def test_the_curve_is_that_of_kaplan_and_meier_on_freireichs_patients() -> None:
    # Freireich et al. 1963, 6-mercaptopurine: weeks of remission; the second list is censored.
    ended = [6, 6, 6, 7, 10, 13, 16, 22, 23]
    running = [6, 9, 10, 11, 17, 19, 20, 25, 32, 32, 34, 35]
    curve = SurvivalCurve([*_ended(*ended), *((0, each, False) for each in running)])
    published = {6: 0.857, 7: 0.807, 10: 0.753, 13: 0.690, 16: 0.627, 22: 0.538, 23: 0.448}
    assert {week: round(curve.survival(week), 3) for week in published} == published


def test_a_lease_that_still_runs_counts_as_longer_than_its_age() -> None:
    ended = _ended(*range(100, 200, 10))
    running = [(0, 500, False)] * 10
    assert SurvivalCurve(ended).residual(0, 0.4) < SurvivalCurve([*ended, *running]).residual(0, 0.4)


def test_leases_that_ran_before_the_observation_began_do_not_make_others_look_long() -> None:
    # Lives of 100 s each come one after the other, and ten services run for ever. Seen for 1,000 s.
    services = [(1e6, 1e6 + 1000, False)] * 10
    assert SurvivalCurve([*_ended(*[100.0] * 10), *services]).residual(0, 0.5) == 100


def test_the_residual_life_is_that_of_a_lease_of_this_age() -> None:
    curve = SurvivalCurve(_ended(*[10.0] * 50, *[1000.0] * 50))
    assert curve.residual(0, 0.4) == 10
    assert curve.residual(20, 0.5) == 980


def test_beyond_the_last_end_a_lease_runs_as_long_again() -> None:
    curve = SurvivalCurve(_ended(*[10.0] * 20))
    assert curve.residual(1000, 0.5) == pytest.approx(1000)
    assert curve.residual(1000, 0.9) == pytest.approx(9000)


def test_medians_of_exponential_lives_are_found_at_every_age() -> None:
    rng = random.Random(1)
    lives = [rng.expovariate(1 / 600) for _ in range(4000)]
    curve = SurvivalCurve(_ended(*lives))
    for age in (0, 300, 900):
        assert curve.residual(age, 0.5) == pytest.approx(600 * 0.693, rel=0.1)


@given(st.lists(st.tuples(AGES, AGES, st.booleans()), min_size=1, max_size=40), AGES)
def test_a_larger_share_never_ends_earlier(given_: list[tuple[float, float, bool]], age: float) -> None:
    curve = SurvivalCurve((min(a, b), max(a, b), ended) for a, b, ended in given_)
    found = [curve.residual(age, share) for share in (0.05, 0.3, 0.5, 0.7, 0.9, 0.99)]
    assert found == sorted(found)
    assert found[0] >= 0


def test_a_quantile_is_a_value_that_was_seen() -> None:
    assert [quantile([5, 1, 3, 2, 4], share) for share in (0.1, 0.5, 0.9)] == [1, 3, 5]
    with pytest.raises(ValueError, match="at least one value"):
        quantile([], 0.5)
