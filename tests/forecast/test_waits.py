"""Past waits of a size say how long a pod waits that has waited so long already; starts are counted by slices."""

import pytest
from tests.support.cost import count_calls

from tessera.forecast.past_times import WAIT_SAMPLES, WAIT_SIZES, WINDOW, RecentStarts, WaitHistory

SIZE = "3g.20gb"


def _waits(*seconds: float) -> WaitHistory:
    found = WaitHistory()
    for each in seconds:
        found.add(SIZE, each, "team")
    return found


def test_the_rest_of_a_wait_is_that_of_pods_that_waited_longer() -> None:
    curve = _waits(*[60.0] * 20, *[600.0] * 20).curve(SIZE, ())
    assert curve.residual(0.0, 0.4) == 60
    assert curve.residual(100.0, 0.4) == 500
    assert [curve.ends_after(age) for age in (0.0, 100.0, 600.0)] == [40, 20, 0]


def test_pods_that_still_wait_make_the_forecast_longer() -> None:
    found = _waits(*range(100, 200, 10))
    assert found.curve(SIZE, [1000.0] * 11).residual(0.0, 0.5) > 1000 > found.curve(SIZE, ()).residual(0.0, 0.5)


def test_sizes_are_kept_apart() -> None:
    assert _waits(60.0).curve("7g.40gb", ()).ends == 0


def test_waits_are_kept_in_bounded_memory() -> None:
    found = WaitHistory()
    for number in range(WAIT_SIZES + 5):
        for _ in range(WAIT_SAMPLES + 5):
            found.add(f"size-{number}", 60.0, "team")
    assert len(found.times) == WAIT_SIZES
    assert "size-0" not in found.times
    assert max(map(len, found.times.values())) == WAIT_SAMPLES


def test_a_namespace_with_many_sizes_takes_no_waits_of_another() -> None:
    found = _waits(60.0)
    for number in range(2 * WAIT_SIZES):
        found.add(f"size-{number}", 1.0, "crowd")
    assert list(found.times[SIZE]) == [60]
    assert len(found.times) == WAIT_SIZES


def test_a_size_that_a_crowding_namespace_brought_first_stays_while_others_use_it() -> None:
    found = WaitHistory()
    found.add(SIZE, 1.0, "crowd")
    for number in range(2 * WAIT_SIZES):
        found.add(f"size-{number}", 1.0, "crowd")
        if number % (WAIT_SIZES // 2) == 0:
            found.add(SIZE, 60.0, "team")
    assert list(found.times[SIZE]) == [1, 60, 60, 60, 60]


def test_a_size_that_a_crowding_namespace_brought_first_comes_back_as_that_of_another() -> None:
    found = WaitHistory()
    found.add(SIZE, 1.0, "crowd")
    for number in range(4 * WAIT_SIZES):
        if number == 2 * WAIT_SIZES:
            assert SIZE not in found.times
            found.add(SIZE, 60.0, "team")
        found.add(f"size-{number}", 1.0, "crowd")
    assert list(found.times[SIZE]) == [60]


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
    monkeypatch.setattr("tessera.forecast.past_times.RATE_STARTS", 3)
    starts = RecentStarts()
    for number in range(5):
        starts.add(SMALL if number < 3 else LARGE, float(number), waited=True)
    assert [starts.count(each, 5.0) for each in (SMALL, LARGE)] == [1, 2]


def test_a_row_of_the_queue_costs_the_same_after_any_number_of_starts() -> None:
    starts = RecentStarts()
    for number in range(5000):
        starts.add(SMALL, number / 10, waited=True)
    assert count_calls(lambda: (starts.count(SMALL, 500.0), starts.wait(SMALL, 1, 500.0)))[0] < 100
