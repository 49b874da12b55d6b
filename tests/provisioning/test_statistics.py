"""Small samples are described as their size allows, and no further."""

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.provisioning.statistics import (
    compare,
    needed_samples,
    quantile,
    student,
    summary,
    supported_share,
    upper_bound,
)

SAMPLE = st.lists(st.floats(0.001, 10_000), min_size=1, max_size=60)


@pytest.mark.parametrize(
    ("freedom", "factor"),
    # Two-sided 95 %, from any printed table of Student's distribution.
    [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (5, 2.571), (9, 2.262), (29, 2.045), (30, 2.042), (120, 1.980)],
)
def test_students_factor_is_the_printed_one(freedom: int, factor: float) -> None:
    assert student(freedom) == pytest.approx(factor, abs=0.0006)


def test_a_sample_is_told_with_its_interval() -> None:
    told = summary([300.0, 310.0, 314.0])
    assert (told.n, told.mean, told.median) == (3, 308.0, 310.0)
    assert told.low is not None
    assert told.high is not None
    assert told.high - 308 == pytest.approx(4.303 * 7.2111 / math.sqrt(3), abs=0.01)
    assert told.low + told.high == pytest.approx(2 * 308)


def test_one_value_has_no_interval() -> None:
    told = summary([5.0])
    assert (told.mean, told.low, told.high, told.deviation) == (5.0, None, None, None)


def test_no_value_has_no_summary() -> None:
    with pytest.raises(ValueError, match="no values"):
        summary([])


def test_two_samples_are_compared_by_difference_and_effect() -> None:
    told = compare([308.0, 306.0, 310.0], [132.0, 130.0, 134.0])
    assert told.difference == 176
    assert told.ratio == pytest.approx(132 / 308)
    # Pooled deviation 2, so 88 deviations, times 1 - 3/15.
    assert told.effect == pytest.approx(88 * 0.8)
    assert told.low is not None
    assert told.high is not None
    assert told.high - told.low == pytest.approx(2 * 2.776 * math.sqrt(8 / 3), abs=0.01)


#: The same wait three times, as clocks tell it that round.
ROUNDED = [80.5, 80.50000000000001, 80.49999999999999]


@pytest.mark.parametrize(
    ("first", "second"),
    [([1.0], [2.0, 3.0]), ([2.0, 2.0], [1.0, 1.0]), ([90.5, 90.5], ROUNDED), ([0.0, 0.0], [0.0, 0.0])],
)
def test_where_nothing_varies_there_is_no_effect_size(first: list[float], second: list[float]) -> None:
    told = compare(first, second)
    assert (told.low, told.high, told.effect) == (None, None, None)


def test_quantiles_lie_between_neighbours() -> None:
    assert quantile([1.0, 2.0, 3.0, 4.0], 0.5) == 2.5
    assert quantile([4.0, 1.0], 0.0) == 1.0
    assert quantile([4.0, 1.0], 1.0) == 4.0


@given(SAMPLE, st.floats(0, 1))
def test_a_quantile_lies_within_the_sample(values: list[float], share: float) -> None:
    assert min(values) <= quantile(values, share) <= max(values)


@pytest.mark.parametrize(("share", "n"), [(0.5, 5), (0.9, 29), (0.95, 59), (0.99, 299)])
def test_a_quantile_needs_so_many_values(share: float, n: int) -> None:
    assert needed_samples(share) == n
    assert upper_bound([float(i) for i in range(n)], share) == n - 1
    assert upper_bound([float(i) for i in range(n - 1)], share) is None
    assert supported_share(n) >= share > supported_share(n - 1)


@given(SAMPLE, st.sampled_from([0.5, 0.9, 0.95]))
def test_the_bound_is_never_below_the_samples_own_quantile(values: list[float], share: float) -> None:
    bound = upper_bound(values, share)
    assert bound is None or bound >= quantile(values, share) * (1 - 1e-12)


def test_the_bound_holds_as_often_as_it_says() -> None:
    rng = Random(1)
    true_p90 = math.exp(1.2815515655446004)  # of a lognormal
    held = 0
    for _ in range(600):
        bound = upper_bound([rng.lognormvariate(0, 1) for _ in range(40)], 0.9)
        held += bound is not None and bound >= true_p90
    assert held / 600 >= 0.93


def test_where_one_sample_does_not_vary_there_is_a_difference_and_no_effect_size() -> None:
    told = compare([10.0, 11.0, 12.0], [5.0, 5.0, 5.0])
    assert told.difference == 6
    assert told.low is not None
    assert told.effect is None
