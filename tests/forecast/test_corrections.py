"""Forecasts are corrected by their outcomes, and starts take as long as the image took before."""

import random

import pytest

from tessera.forecast.calibration import BY_DEADLINE, EVERY_SIZE, Calibration, Factors
from tessera.forecast.start_times import StartTimes
from tessera.limits.forecast import CALIBRATED_SIZES, START_IMAGES, START_SAMPLES

SIZE = "3g.20gb"


@pytest.mark.parametrize("error", [0.25, 1.0, 4.0])
def test_in_the_long_run_the_shares_are_kept_whatever_the_error_of_the_forecast(error: float) -> None:
    rng, calibration = random.Random(2), Calibration()
    outcomes = []
    for _ in range(4000):
        wait = rng.expovariate(1 / 100)
        p50, p90 = calibration.correct(SIZE, 69 * error, 230 * error)
        outcomes.append((wait <= p50, wait <= p90))
        calibration.note_start(SIZE, wait, p50, p90)
    later = outcomes[500:]
    assert sum(each for each, _ in later) / len(later) == pytest.approx(0.5, abs=0.03)
    assert sum(each for _, each in later) / len(later) == pytest.approx(0.9, abs=0.03)


def test_sizes_that_err_in_different_directions_are_corrected_apart() -> None:
    rng, calibration = random.Random(3), Calibration()
    early: dict[str, list[bool]] = {"1g.5gb": [], "7g.40gb": []}
    for _ in range(3000):
        for size, mean in (("1g.5gb", 10.0), ("7g.40gb", 1000.0)):
            wait = rng.expovariate(1 / mean)
            p50, p90 = calibration.correct(size, 69, 230)
            early[size].append(wait <= p50)
            calibration.note_start(size, wait, p50, p90)
    for found in early.values():
        assert sum(found[500:]) / len(found[500:]) == pytest.approx(0.5, abs=0.03)


def test_a_size_without_starts_is_corrected_like_all() -> None:
    calibration = Calibration()
    for _ in range(50):
        calibration.note_start(SIZE, 1000, 10, 20)
    assert calibration.correct("new", 10, 20) == calibration.correct(SIZE, 10, 20)
    assert calibration.correct("new", 10, 20)[0] > 50


def test_forecasts_by_deadlines_are_corrected_by_their_own_outcomes_alone() -> None:
    calibration = Calibration()
    for _ in range(50):
        calibration.note_start(SIZE, 1000, 10, 20)
    assert calibration.correct(BY_DEADLINE, 10, 10) == (10, 10)
    for _ in range(5):
        calibration.note_start(BY_DEADLINE, 1000, 10, 10)
    assert calibration.correct(BY_DEADLINE, 10, 10)[1] > 10


def test_the_last_waits_forecast_where_they_did_better_than_the_simulation() -> None:
    rng, calibration = random.Random(4), Calibration()
    for _ in range(200):
        wait = rng.uniform(90, 110)
        wild = 10 ** rng.uniform(0, 5)
        recent = calibration.recent(SIZE)
        calibration.note_start(SIZE, wait, wild, 2 * wild)
        calibration.note_recent(SIZE, wait, recent)
    assert calibration.prefers_recent(SIZE)
    recent = calibration.recent(SIZE)
    assert recent is not None
    assert 80 < recent[0] <= recent[1] < 130


def test_the_simulation_forecasts_while_the_last_waits_are_few_or_worse() -> None:
    rng, calibration = random.Random(5), Calibration()
    assert calibration.recent(SIZE) is None
    for number in range(200):
        wait = 100.0 if number % 40 < 20 else 10_000.0
        recent = calibration.recent(SIZE)
        calibration.note_start(SIZE, wait * rng.uniform(0.9, 1.1), wait, 1.1 * wait)
        calibration.note_recent(SIZE, wait, recent)
        assert not calibration.prefers_recent(SIZE)


def test_corrections_are_kept_in_bounded_memory() -> None:
    calibration = Calibration()
    for number in range(CALIBRATED_SIZES + 50):
        calibration.note_start(f"{number}", 10, 10, 10)
    assert len(calibration.by_size) == CALIBRATED_SIZES
    assert EVERY_SIZE in calibration.by_size


def test_the_end_of_a_range_is_never_before_its_middle() -> None:
    assert Calibration({EVERY_SIZE: Factors(3.0, -3.0, 50)}).correct(SIZE, 100, 110) == pytest.approx(
        (2008.55, 2008.55), rel=1e-3
    )


def test_an_image_takes_the_times_of_its_own_starts() -> None:
    starts = StartTimes()
    for seconds in (10, 20, 300):
        starts.add("large", seconds)
    starts.add("small", 2)
    assert (starts.seconds("large", 0.5), starts.seconds("large", 0.9)) == (20, 300)
    assert starts.seconds("small", 0.9) == 2
    assert starts.seconds("unknown", 0.5) == 10  # of all images


def test_nothing_is_added_while_no_start_is_known() -> None:
    assert StartTimes().seconds("image", 0.9) == 0


def test_starts_are_kept_in_bounded_memory() -> None:
    starts = StartTimes()
    for number in range(START_IMAGES + 50):
        for _ in range(START_SAMPLES + 5):
            starts.add(f"image-{number}", 3)
        starts.add(f"image-{number}", 1e9)  # no pull took so long
    assert len(starts.by_image) == START_IMAGES
    assert max(map(len, starts.by_image.values())) == START_SAMPLES
    assert starts.seconds("any", 0.9) == 3
