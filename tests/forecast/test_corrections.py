"""Forecasts are corrected by their outcomes, and starts take as long as the image took before."""

import random

import pytest

from tessera.forecast.calibration import AIMS, CALIBRATED_SIZES, Calibration, End, Factors
from tessera.forecast.past_times import EVERY, START_IMAGES, START_SAMPLES, StartTimes

SIZE = "3g.20gb"


def _note_start(
    calibration: Calibration, size: str, wait: float, p50: float, p90: float, *, namespace: str = "team"
) -> None:
    for key in (size, EVERY):
        for end, forecast in zip(End, (p50, p90), strict=True):
            calibration.note(key, end, late=calibration.is_late(key, end, wait, forecast), namespace=namespace)


@pytest.mark.parametrize("error", [0.3, 1.0, 4.0])
def test_in_the_long_run_the_shares_are_kept_whatever_the_error_of_the_forecast(error: float) -> None:
    rng, calibration = random.Random(2), Calibration()
    outcomes = []
    for _ in range(4000):
        wait = rng.expovariate(1 / 100)
        p50, p90 = calibration.correct(SIZE, 69 * error, 230 * error)
        outcomes.append((wait <= p50, wait <= p90))
        _note_start(calibration, SIZE, wait, 69 * error, 230 * error)
    later = outcomes[500:]
    assert sum(each for each, _ in later) / len(later) == pytest.approx(0.5, abs=0.03)
    assert sum(each for _, each in later) / len(later) == pytest.approx(AIMS[End.LATE], abs=0.02)


def test_sizes_that_err_in_different_directions_are_corrected_apart() -> None:
    rng, calibration = random.Random(3), Calibration()
    early: dict[str, list[bool]] = {"1g.5gb": [], "7g.40gb": []}
    for _ in range(3000):
        for size, mean in (("1g.5gb", 30.0), ("7g.40gb", 300.0)):
            wait = rng.expovariate(1 / mean)
            p50, _ = calibration.correct(size, 69, 230)
            early[size].append(wait <= p50)
            _note_start(calibration, size, wait, 69, 230)
    for found in early.values():
        assert sum(found[500:]) / len(found[500:]) == pytest.approx(0.5, abs=0.03)


def test_a_size_without_starts_is_corrected_like_all() -> None:
    calibration = Calibration()
    for _ in range(50):
        _note_start(calibration, SIZE, 1000, 10, 20)
    assert calibration.correct("new", 10, 20) == calibration.correct(SIZE, 10, 20)
    assert calibration.correct("new", 10, 20)[0] > 40


def test_a_burst_of_late_pods_moves_a_factor_as_far_as_they_were_late_and_no_further() -> None:
    calibration = Calibration()
    for _ in range(500):
        _note_start(calibration, SIZE, 20, 10, 10)
    assert calibration.correct(SIZE, 10, 10) == pytest.approx((20, 20), rel=0.1)


def test_corrections_are_kept_in_bounded_memory() -> None:
    calibration = Calibration()
    for number in range(CALIBRATED_SIZES + 50):
        _note_start(calibration, f"{number}", 10, 10, 10)
    assert len(calibration.by_size) == CALIBRATED_SIZES
    assert EVERY in calibration.by_size


def test_a_namespace_with_many_sizes_takes_no_correction_of_another() -> None:
    calibration = Calibration()
    for _ in range(30):
        _note_start(calibration, SIZE, 1000, 10, 10)
    before = calibration.correct(SIZE, 10, 10)
    for number in range(2 * CALIBRATED_SIZES):
        _note_start(calibration, f"{number}", 1, 1000, 1000, namespace="crowd")
    assert calibration.correct(SIZE, 10, 10) == before
    assert len(calibration.by_size) == CALIBRATED_SIZES
    assert calibration.brought_by.keys() == calibration.by_size.keys() - {EVERY}


def test_the_end_of_a_range_is_never_before_its_middle() -> None:
    assert Calibration({EVERY: Factors(1.0, -1.0, 50)}).correct(SIZE, 100, 110) == pytest.approx(
        (271.83, 271.83), rel=1e-3
    )


def test_an_image_takes_the_times_of_its_own_starts() -> None:
    starts = StartTimes()
    for seconds in (10, 20, 300):
        starts.add("large", seconds, "team")
    starts.add("small", 2, "team")
    assert (starts.seconds("large", 0.5), starts.seconds("large", 0.9)) == (20, 300)
    assert starts.seconds("small", 0.9) == 2
    assert starts.seconds("unknown", 0.5) == 10  # of all images


def test_nothing_is_added_while_no_start_is_known() -> None:
    assert StartTimes().seconds("image", 0.9) == 0


def test_a_namespace_with_many_images_takes_no_times_of_another() -> None:
    starts = StartTimes()
    starts.add("large", 300, "team")
    for number in range(2 * START_IMAGES):
        starts.add(f"image-{number}", 3, "crowd")
    assert (starts.seconds("large", 0.5), starts.seconds("unknown", 0.5)) == (300, 3)


def test_starts_are_kept_in_bounded_memory() -> None:
    starts = StartTimes()
    for number in range(START_IMAGES + 50):
        for _ in range(START_SAMPLES + 5):
            starts.add(f"image-{number}", 3, "team")
        starts.add(f"image-{number}", 1e9, "team")  # no pull took so long
    assert len(starts.times) == START_IMAGES
    assert max(map(len, starts.times.values())) == START_SAMPLES
    assert starts.seconds("any", 0.9) == 3
