"""Starts of the last hour are counted by the slices of the pods, without a look at each of them."""

import pytest
from tests.support.cost import count_calls

from tessera.forecast import rate
from tessera.forecast.rate import WINDOW, RecentStarts

SMALL, LARGE = ("1g.5gb",), ("1g.5gb", "3g.20gb")


def test_starts_count_by_slices_until_they_are_an_hour_old() -> None:
    starts = RecentStarts()
    for time, profiles in ((0.0, SMALL), (10.0, LARGE), (20.0, SMALL)):
        starts.add(profiles, time, waited=True)
    assert [starts.count(each, 20.0) for each in (SMALL, LARGE, ("7g.40gb",))] == [2, 1, 0]
    assert [starts.count(each, WINDOW + 10.0) for each in (SMALL, LARGE)] == [1, 1]
    assert [starts.count(each, WINDOW + 20.5) for each in (SMALL, LARGE)] == [0, 0]


def test_only_starts_of_pods_that_had_waited_make_a_rate() -> None:
    starts = RecentStarts()
    starts.begin(0.0)
    for number in range(6):
        starts.add(SMALL, float(number), waited=number % 2 == 0)
    found = starts.wait(SMALL, 1, 600.0)
    assert found is not None
    assert 100.0 < found[0] < 200.0 < found[1], "three in ten minutes"
    assert starts.wait(LARGE, 1, 600.0) is None
    assert starts.wait(SMALL, 1, WINDOW + 0.5) is None, "two are left"


def test_of_too_many_starts_the_oldest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate, "RATE_STARTS", 3)
    starts = RecentStarts()
    for number in range(5):
        starts.add(SMALL if number < 3 else LARGE, float(number), waited=True)
    assert [starts.count(each, 5.0) for each in (SMALL, LARGE)] == [1, 2]


def test_a_row_of_the_queue_costs_the_same_after_any_number_of_starts() -> None:
    starts = RecentStarts()
    for number in range(5000):
        starts.add(SMALL, number / 10, waited=True)
    assert count_calls(lambda: (starts.count(SMALL, 500.0), starts.wait(SMALL, 1, 500.0)))[0] < 100
