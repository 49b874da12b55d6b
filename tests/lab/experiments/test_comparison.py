"""Samples of experiments, told and compared with what they support."""

import math

import pytest

from tessera_lab.experiments.results import compare, student, summary

#: The same wait three times, as clocks tell it that round.
ROUNDED = [80.5, 80.50000000000001, 80.49999999999999]


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


@pytest.mark.parametrize(
    ("first", "second"),
    [([1.0], [2.0, 3.0]), ([2.0, 2.0], [1.0, 1.0]), ([90.5, 90.5], ROUNDED), ([0.0, 0.0], [0.0, 0.0])],
)
def test_where_nothing_varies_there_is_no_effect_size(first: list[float], second: list[float]) -> None:
    told = compare(first, second)
    assert (told.low, told.high, told.effect) == (None, None, None)


def test_where_one_sample_does_not_vary_there_is_a_difference_and_no_effect_size() -> None:
    told = compare([10.0, 11.0, 12.0], [5.0, 5.0, 5.0])
    assert told.difference == 6
    assert told.low is not None
    assert told.effect is None
