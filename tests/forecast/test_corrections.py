"""Forecasts are corrected by their outcomes, and starts take as long as the image took before."""

import random

import pytest

from tessera.forecast.calibration import Calibration
from tessera.forecast.start_times import StartTimes
from tessera.limits.forecast import START_IMAGES, START_SAMPLES


@pytest.mark.parametrize("error", [0.25, 1.0, 4.0])
def test_in_the_long_run_the_shares_are_kept_whatever_the_error_of_the_forecast(error: float) -> None:
    rng, calibration = random.Random(2), Calibration()
    outcomes = []
    for _ in range(4000):
        wait = rng.expovariate(1 / 100)
        p50, p90 = calibration.correct(69 * error, 230 * error)
        outcomes.append((wait <= p50, wait <= p90))
        calibration.note_start(wait, p50, p90)
    later = outcomes[500:]
    assert sum(each for each, _ in later) / len(later) == pytest.approx(0.5, abs=0.03)
    assert sum(each for _, each in later) / len(later) == pytest.approx(0.9, abs=0.03)


def test_the_end_of_a_range_is_never_before_its_middle() -> None:
    assert Calibration(3.0, -3.0).correct(100, 110) == pytest.approx((2008.55, 2008.55), rel=1e-3)


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
