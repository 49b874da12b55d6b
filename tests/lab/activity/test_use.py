"""Load and memory of a pod over time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera_lab.activity.use import Growth, Load, LoadShape, Use, activity_at, memory_at, memory_bytes, parse_span

GIB = 2**30


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("10m", 600), ("1.5h", 5400), ("0s", 0)])
def test_a_span_is_a_number_with_a_unit(text: str, seconds: float) -> None:
    assert parse_span(text) == seconds


@pytest.mark.parametrize("text", ["", "5", "5d", "-5s", "1e9s", "9999999s", "5 s", "٣s"])
def test_what_is_no_span_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="90s, 10m"):
        parse_span(text)


@pytest.mark.soak
@given(
    shape=st.sampled_from(LoadShape),
    ends=st.tuples(st.floats(0, 1), st.floats(0, 1)).map(sorted),
    elapsed=st.floats(0, 1e6),
    seed=st.text(max_size=20),
)
def test_a_load_stays_between_its_ends_and_is_the_same_for_the_same_seed(
    shape: LoadShape, ends: list[float], elapsed: float, seed: str
) -> None:
    load = Load(high=ends[1], low=ends[0], shape=shape, period="3m")
    share = activity_at(load, elapsed, seed)
    assert ends[0] <= share <= ends[1]
    assert activity_at(load, elapsed, seed) == share


def test_a_wave_reaches_both_ends_and_bursts_are_mostly_low() -> None:
    times = [10.0 * step for step in range(60)]
    wave = [activity_at(Load(0.9, 0.1, LoadShape.WAVE, "10m"), each, "a") for each in times]
    assert [min(wave), max(wave)] == pytest.approx([0.1, 0.9], abs=0.1)
    bursts = [activity_at(Load(1.0, 0.0, LoadShape.BURSTS, "10m"), each, "a") for each in times]
    assert 10 <= sum(each > 0.5 for each in bursts) <= 25
    assert wave != [activity_at(Load(0.9, 0.1, LoadShape.WAVE, "10m"), each, "b") for each in times]


def test_memory_grows_to_its_end_and_stays() -> None:
    growth = Growth(to="12Gi", start="10%", over="10m")
    assert [memory_at(growth, each, 40 * GIB) // GIB for each in (0, 300, 600, 9000)] == [4, 8, 12, 12]


@pytest.mark.parametrize("text", ["101%", "-1", "much", "12Q", "1e400Gi"])
def test_what_is_no_memory_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"memory|quantity"):
        memory_bytes(text, GIB)


def test_a_number_is_a_steady_load_and_a_text_is_memory_from_the_beginning() -> None:
    use = Use(load=0.5, memory="2Gi")
    assert activity_at(use.curve(), 77, "x") == 0.5
    growth = use.growth()
    assert growth is not None
    assert memory_at(growth, 0, 8 * GIB) == 2 * GIB


@pytest.mark.parametrize(("high", "low"), [(1.1, 0), (0.5, 0.6), (float("nan"), 0), (0.5, -0.1)])
def test_a_load_out_of_bounds_is_refused(high: float, low: float) -> None:
    with pytest.raises(ValueError, match="0 to 1"):
        Load(high, low)
