"""Two forecasts are blended by weights that follow the one with the smaller loss."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.forecast.calibration import Blend, pinball

SECONDS = st.floats(0, 1e7)
RANGE = st.tuples(SECONDS, SECONDS)
#: Median and ninth decile of waits with a mean of 100 s.
GOOD, BAD = (69.0, 230.0), (1000.0, 3000.0)


def _losses(blend: Blend, rng: random.Random, starts: int, mean: float) -> tuple[float, float, float]:
    """Mean loss of the blend, of the simulation's range GOOD, and of BAD, the past waits'."""
    total = [0.0, 0.0, 0.0]
    for _ in range(starts):
        wait = rng.expovariate(1 / mean)
        for number, found in enumerate((blend.mix(GOOD, BAD), GOOD, BAD)):
            total[number] += pinball(wait, found[0], 0.5) + pinball(wait, found[1], 0.9)
        blend.note(wait, GOOD, BAD)
    return total[0] / starts, total[1] / starts, total[2] / starts


def test_a_blend_begins_in_the_middle() -> None:
    assert Blend().mix((99.0, 200.0), (399.0, 400.0)) == pytest.approx((199.0, 300.0))


def test_a_forecast_that_is_always_far_too_late_moves_the_middle_little() -> None:
    blend, rng = Blend(), random.Random(2)
    simulated, waits = (300.0, 460.0), (15_000.0, 23_000.0)
    for _ in range(1000):
        blend.note(rng.uniform(100, 500), simulated, waits)
    p50, p90 = blend.mix(simulated, waits)
    assert p50 < 1.6 * 300
    assert p90 < 6 * 460


def test_the_weights_follow_the_better_forecast_and_return_when_it_is_the_other() -> None:
    blend, rng = Blend(), random.Random(1)
    _losses(blend, rng, 300, 100.0)
    assert blend.middle < 0.2
    assert blend.late < 0.2
    _losses(blend, rng, 300, 3000.0)
    assert blend.middle > 0.6
    assert blend.late > 0.6


@pytest.mark.parametrize("mean", [100.0, 3000.0])
def test_the_loss_of_a_blend_is_near_that_of_the_better_forecast(mean: float) -> None:
    blend, rng = Blend(), random.Random(2)
    _losses(blend, rng, 300, mean)
    found, simulated, waits = _losses(blend, rng, 3000, mean)
    assert found < min(simulated, waits) + 0.25 * (max(simulated, waits) - min(simulated, waits))


@given(st.lists(st.tuples(SECONDS, RANGE, RANGE), max_size=50), RANGE, RANGE)
def test_a_blend_lies_between_both_forecasts_and_neither_is_forgotten(
    starts: list[tuple[float, tuple[float, float], tuple[float, float]]],
    one: tuple[float, float],
    other: tuple[float, float],
) -> None:
    blend = Blend()
    for each in starts:
        blend.note(*each)
    assert 0.005 < blend.middle < 0.995
    assert 0.005 < blend.late < 0.995
    p50, p90 = blend.mix(one, other)
    assert min(one[0], other[0]) <= p50 * (1 + 1e-9)
    assert p50 * (1 - 1e-9) <= max(one[0], other[0])
    assert p50 <= p90
